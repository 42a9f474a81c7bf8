"""Threads go away: when a pipeline ends, is closed, is dropped, and when the interpreter exits."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from headrace.ingest.engine.conformance_sources import ListSource
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.ordered import OrderedRun
from headrace.ingest.engine.parallel_map import ParallelMap
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.engine.threads import _stop_all

SOURCE_ROOT = str(Path(__file__).resolve().parents[3] / "src")


def our_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("headrace-")]


def wait_until_no_threads(bound_s: float = 5.0) -> list[str]:
    deadline = time.monotonic() + bound_s
    while our_threads() and time.monotonic() < deadline:
        time.sleep(0.005)
    return our_threads()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Plus(Node[int]):
    def _next(self) -> int:
        return self._pull() + 1


def chain(source: object) -> Node[int]:
    return Plus(Prefetch(Plus(ParallelMap(Prefetch(source), abs, num_workers=2))))  # type: ignore[arg-type]


def test_the_end_of_the_stream_ends_the_threads() -> None:
    node = chain([1, 2, 3])
    assert list(node) == [3, 4, 5]
    assert wait_until_no_threads() == []


def test_dropping_the_last_reference_stops_the_threads_without_the_collector() -> None:  # L59
    with no_garbage_collection():
        node = chain(ListSource(range(1000)))
        next(node)
        assert len(our_threads()) == 4
        gone = weakref.ref(node)
        del node
        assert gone() is None
        assert wait_until_no_threads() == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_makes_no_reference_cycle(num_workers: int) -> None:  # L59
    def fails(item: int) -> int:
        raise ValueError(item)

    with no_garbage_collection():
        node = Prefetch(ParallelMap(Prefetch(ListSource(range(1000))), fails, num_workers=num_workers))
        for _ in range(2):
            with suppress(ValueError):
                next(node)
        gone = [weakref.ref(node), weakref.ref(node.source), weakref.ref(node.source.source)]
        del node
        assert wait_until_no_threads() == []
        deadline = time.monotonic() + 5
        while any(g() is not None for g in gone) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert [g() for g in gone] == [None, None, None]


def test_a_source_error_makes_no_reference_cycle() -> None:
    with no_garbage_collection():
        node = Plus(Plus(["text"]))  # type: ignore[list-item]
        with suppress(TypeError):
            next(node)
        gone = weakref.ref(node)
        del node
        assert gone() is None


def test_a_hundred_pipelines_leave_threads_and_files_as_they_were() -> None:  # P70
    process = psutil.Process()
    list(chain([1]))
    wait_until_no_threads()
    files, threads = process.num_fds(), process.num_threads()
    for number in range(100):
        node = chain(ListSource(range(50)))
        next(node)
        if number % 3 == 0:
            node.close()
        if number % 3 == 1:
            list(node)
        del node
    assert wait_until_no_threads() == []
    assert process.num_fds() <= files
    deadline = time.monotonic() + 5
    while process.num_threads() > threads and time.monotonic() < deadline:  # the system needs a moment to reap them
        time.sleep(0.005)
    assert process.num_threads() <= threads


def test_a_dead_worker_is_an_error_not_a_hang() -> None:
    run = OrderedRun("Test", lambda: (1, None), abs, num_workers=2, capacity=2)
    run._claim = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(RuntimeError, match="Test: a worker thread died") as caught:
        run.take(10)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_no_more_threads_to_be_had_is_an_error_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        plain_start(thread)

    plain_start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    node = ParallelMap(range(10), abs, num_workers=4)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(node)
    monkeypatch.undo()
    assert wait_until_no_threads() == []
    node.reset()
    assert list(node) == list(range(10))


def test_after_a_fork_use_is_refused_and_stopping_does_not_hang() -> None:  # L46
    node = Prefetch(ListSource(range(10)))
    next(node)
    run = node._run
    assert isinstance(run, OrderedRun)
    with _held_by_another_thread(run._lock):  # as a worker might, at the moment of the fork
        child = os.fork()
        if child == 0:
            _exit_of_forked_child(node)
    deadline = time.monotonic() + 20
    done, status = 0, 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.005)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert done
    assert os.waitstatus_to_exitcode(status) == 0
    node.close()


def _exit_of_forked_child(node: Node[int]) -> None:
    code = 1
    try:
        next(node)
    except RuntimeError as error:
        code = 0 if "was forked" in str(error) else 2
    try:
        node.close()
        _stop_all()
    except BaseException:
        code = 3
    os._exit(code)


@contextmanager
def _held_by_another_thread(lock: threading.RLock) -> Iterator[None]:  # type: ignore[valid-type]
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:  # type: ignore[attr-defined]
            held.set()
            release.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    yield
    release.set()
    thread.join(10)


# ---- the interpreter's exit ---------------------------------------------------------------------------------------

PRELUDE = """
import atexit, sys, threading, time

def tell_threads():  # registered before the engine's own handler, so it runs after it
    names = [t.name for t in threading.enumerate() if t.name.startswith("headrace-")]
    print("threads at the very end:", len(names), flush=True)

atexit.register(tell_threads)
from torchdata.nodes import BaseNode
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.engine.threads import _stop_all
from headrace.ingest.engine.parallel_map import ParallelMap

class Stuck(BaseNode):
    def reset(self, state=None):
        super().reset(state)
    def next(self):
        print("stuck", flush=True)
        threading.Event().wait()
    def get_state(self):
        return {}

def ready():
    print("ready", flush=True)
"""

LEAKED = "node = Prefetch(ParallelMap(range(10**9), abs, num_workers=2))\nnext(node)\nready()\n"
LEAKED_STUCK = "node = Prefetch(ParallelMap(Stuck(), abs, num_workers=2), timeout_s=0.2)\n"
LEAKED_STUCK += "try:\n    next(node)\nexcept TimeoutError:\n    ready()\n"
LEAKED_IN_USER_THREAD = """
node = Prefetch(range(1000))
def train():
    for n, _ in enumerate(node):
        time.sleep(0.0005)
    print("trained", n + 1, flush=True)
threading.Thread(target=train).start()
ready()
"""
CLOSED_STUCK = LEAKED_STUCK + "node.close_timeout_s = 0.2\nnode.close()\n"


def run_until_exit(script: str, *, signal_at_ready: int | None = None) -> tuple[int, float, str, str]:
    """(exit code, seconds from 'ready' to the end of the process, stdout, stderr)."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE_ROOT},
    )
    try:
        assert process.stdout is not None
        output = ""
        while "ready" not in output:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=30)
            output += line
        started = time.monotonic()
        if signal_at_ready is not None:
            time.sleep(0.2)
            process.send_signal(signal_at_ready)
        rest, errors = process.communicate(timeout=30)
        return process.returncode, time.monotonic() - started, output + rest, errors
    finally:
        process.kill()


def test_a_leaked_pipeline_lets_the_interpreter_exit_in_silence() -> None:  # L48, L49
    code, seconds, output, errors = run_until_exit(LEAKED + "raise SystemExit(3)\n")
    assert (code, errors) == (3, "")
    assert "threads at the very end: 0" in output
    assert seconds < 2


def test_a_leaked_pipeline_over_a_stuck_source_does_not_keep_the_interpreter() -> None:  # L49
    code, seconds, _, errors = run_until_exit(LEAKED_STUCK)
    assert (code, errors) == (0, "")
    assert seconds < 3.5  # the exit handler waits for 1 s


def test_a_closed_pipeline_over_a_stuck_source_warns_and_exits() -> None:
    code, seconds, _, errors = run_until_exit(CLOSED_STUCK)
    assert code == 0
    assert errors.count("RuntimeWarning: Prefetch.close(): not stopped after 0.2 s") == 1
    assert "Traceback" not in errors
    assert seconds < 3.5


def test_a_users_own_thread_may_finish_its_epoch_after_the_main_thread() -> None:
    code, _, output, errors = run_until_exit(LEAKED_IN_USER_THREAD)
    assert (code, errors) == (0, "")
    assert "trained 1000" in output


def test_ctrl_c_gives_one_traceback() -> None:  # L48
    # Who runs the tests in the background ignores the signal.
    script = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "node = Prefetch(Prefetch(Stuck()))\nready()\nnext(node)\n"
    code, seconds, _, errors = run_until_exit(script, signal_at_ready=signal.SIGINT)
    assert code in (1, 130, -signal.SIGINT)
    assert errors.count("Traceback") == 1
    assert "KeyboardInterrupt" in errors
    assert seconds < 3.5
