"""The thread that moves rows: order, what lands when, errors, ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from headrace.embed import move_worker
from headrace.embed.move_worker import LONGEST_STAGED, MoveWorker

NEVER = -1


class FakeJob:
    """Notes what is done in `log`; `gates` hold a step back until they are set."""

    def __init__(self, number, log, *, last_wait=NEVER, gates=None, error=None):
        self.number, self.last_wait = number, last_wait
        self.log, self.gates, self.error = log, gates or {}, error

    def _do(self, what):
        if what in self.gates:
            assert self.gates[what].wait(60)
        if self.error is not None and self.error[0] == what:
            raise self.error[1]
        self.log.append((what, self.number))

    def vacate(self):
        self._do("vacate")

    def fetch(self):
        self._do("fetch")

    def land(self):
        self._do("land")

    def hold(self):
        self.log.append(("hold", self.number))


@pytest.fixture
def worker():
    worker = MoveWorker()
    yield worker
    worker.close(60)


def steps(log, what):
    return [number for done, number in log if done == what]


def test_a_write_back_lands_when_nothing_else_is_to_be_done(worker):
    log, gate = [], threading.Event()
    worker.submit(FakeJob(0, log, gates={"fetch": gate}))
    for number in (1, 2, 3):
        worker.submit(FakeJob(number, log))
    gate.set()
    worker.wait(3)
    assert [x for x in log if x[0] in ("vacate", "fetch")] == [
        (what, number) for number in range(4) for what in ("vacate", "fetch")
    ]
    worker.drain()
    assert steps(log, "land") == [0, 1, 2, 3]
    assert log.index(("land", 0)) > log.index(("fetch", 3))
    assert steps(log, "hold") == [0, 1, 2, 3]  # one that was not waited for is held with the later one


@pytest.mark.parametrize("last_wait", [0, 1, 2])
def test_a_fetch_comes_after_the_write_back_that_it_waits_for(worker, last_wait):
    log, gate = [], threading.Event()
    worker.submit(FakeJob(0, log, gates={"fetch": gate}))
    worker.submit(FakeJob(1, log))
    worker.submit(FakeJob(2, log, last_wait=last_wait))  # 2: its own
    gate.set()
    worker.wait(2)
    fetched = log.index(("fetch", 2))
    assert [number for number in range(3) if ("land", number) in log[:fetched]] == list(range(last_wait + 1))
    assert log.index(("vacate", 2)) < fetched


def test_an_old_write_back_has_landed_although_no_plan_names_it(worker):
    # plans name no write-back that is older than the horizon, which is at least 4; movements without rows come not here
    log, gate = [], threading.Event()
    worker.submit(FakeJob(0, log, gates={"fetch": gate}))
    worker.submit(FakeJob(1, log))
    worker.submit(FakeJob(LONGEST_STAGED, log))
    worker.submit(FakeJob(LONGEST_STAGED + 5, log))
    gate.set()
    worker.wait(LONGEST_STAGED + 5)
    assert [n for n in (0, 1, 4) if ("land", n) in log[: log.index(("fetch", 4))]] == [0]
    assert [n for n in (0, 1, 4, 9) if ("land", n) in log[: log.index(("fetch", 9))]] == [0, 1, 4]


def test_waiting_for_a_movement_does_not_wait_for_later_ones_nor_for_landing(worker):
    log, gate = [], threading.Event()
    worker.submit(FakeJob(0, log, gates={"land": gate}))
    worker.wait(0)
    worker.wait(7)  # nothing is owed
    assert steps(log, "land") == []
    gate.set()
    worker.drain()
    assert steps(log, "land") == [0]


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_threads_breaks_the_duties(seed):
    """Random jobs, with pauses: after each step of the thread, the duties hold."""
    rng = np.random.default_rng(seed)
    log, worker = [], MoveWorker()
    number, waits = -1, {}
    for _ in range(40):
        number += int(rng.integers(1, 4))
        earlier = [n for n in waits if number - n <= LONGEST_STAGED]
        waits[number] = int(rng.choice([NEVER, *earlier, number]))
        job = FakeJob(number, log, last_wait=waits[number])
        pause, at = float(rng.random() * 2e-3), str(rng.choice(["vacate", "fetch", "land", "none"]))
        if at != "none":
            done = getattr(job, at)
            setattr(job, at, lambda done=done, pause=pause: (time.sleep(pause), done()))
        worker.submit(job)
        if rng.random() < 0.5:
            worker.wait(number - int(rng.integers(0, 3)))
    worker.drain()
    worker.close(60)
    assert steps(log, "vacate") == steps(log, "fetch") == steps(log, "land") == list(waits)
    for number, wait in waits.items():
        before = log[: log.index(("fetch", number))]
        due = [n for n in waits if n <= max(wait, number - LONGEST_STAGED)]
        assert all(("land", n) in before for n in due)
        assert log.index(("vacate", number)) < min(log.index(("fetch", number)), log.index(("land", number)))


class Odd(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


@pytest.mark.parametrize("at", ["vacate", "fetch", "land"])
@pytest.mark.parametrize("error", [MemoryError("no more"), Odd(1, 2), SystemExit(3)])
def test_an_error_is_raised_with_its_type_until_the_jobs_are_dropped(at, error):
    log, worker = [], MoveWorker()
    worker.submit(FakeJob(0, log, error=(at, error)))
    for _ in range(2):
        with pytest.raises(type(error)) as found:
            worker.drain()
        assert found.value is error
    with pytest.raises(type(error)):
        worker.submit(FakeJob(1, log))
    if at != "land":
        with pytest.raises(type(error)):
            worker.wait(0)
    worker.close(60)
    worker.drop()
    worker.submit(FakeJob(0, log))
    worker.wait(0)
    assert ("fetch", 0) in log
    worker.close(60)


def test_close_ends_the_thread_and_may_be_called_again():
    log, worker = [], MoveWorker()
    worker.close(60)
    before = threading.active_count()
    worker.submit(FakeJob(0, log))
    assert threading.active_count() == before + 1
    worker.close(60)
    assert threading.active_count() == before
    assert steps(log, "land") == [0]
    worker.close(60)
    worker.submit(FakeJob(1, log))
    worker.wait(1)
    worker.close(60)
    assert steps(log, "fetch") == [0, 1]


def test_close_gives_up_a_thread_that_is_stuck():
    log, gate, worker = [], threading.Event(), MoveWorker()
    worker.submit(FakeJob(0, log, gates={"land": gate}))
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"still busy after 0\.1 s"):
        worker.close(0.1)
    assert time.monotonic() - begin < 30
    gate.set()
    worker.close(60)
    assert steps(log, "land") == [0]


def test_waits_are_bounded(monkeypatch, worker):
    gate = threading.Event()
    monkeypatch.setattr(move_worker, "PATIENCE_S", 0.1)
    worker.submit(FakeJob(0, [], gates={"fetch": gate}))
    with pytest.raises(TimeoutError, match=r"movement 0: rows are still being moved after 0\.1 s"):
        worker.wait(0)
    with pytest.raises(TimeoutError, match="all movements"):
        worker.drain()
    gate.set()


def test_a_wait_can_be_interrupted_and_taken_up_again(worker):
    log, gate = [], threading.Event()
    worker.submit(FakeJob(0, log, gates={"fetch": gate}))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            worker.wait(0)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, previous)
    gate.set()
    worker.wait(0)
    assert steps(log, "fetch") == [0]


def test_a_mover_that_is_gone_ends_its_thread():
    before = set(threading.enumerate())
    worker = MoveWorker()
    worker.submit(FakeJob(0, []))
    worker.drain()
    (thread,) = set(threading.enumerate()) - before
    gone = weakref.ref(worker)
    del worker
    gc.collect()
    assert gone() is None
    thread.join(60)
    assert not thread.is_alive()


def test_a_forked_child_is_refused():
    worker = MoveWorker()
    worker.submit(FakeJob(0, []))
    worker.drain()
    child = os.fork()
    if child == 0:
        try:
            worker.wait(0)
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    worker.close(60)


@pytest.mark.parametrize("stuck", [False, True])
def test_the_interpreter_ends(stuck, repository):
    program = f"""
import threading, time
from headrace.embed import move_worker
move_worker.EXIT_TIMEOUT_S = 0.5
class Job:
    number, last_wait = 0, -1
    def vacate(self): pass
    def fetch(self): pass
    def land(self): time.sleep(600 if {stuck} else 0)
worker = move_worker.MoveWorker()
worker.submit(Job())
worker.wait(0)
""".replace("worker.wait(0)", "" if not stuck else "time.sleep(0.2)")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
