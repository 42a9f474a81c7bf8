"""Ordered production by threads: the one piece of machinery under every node that works ahead."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from headrace.ingest.engine.errors import NodeClosedError
from headrace.ingest.engine.state import Snapshot
from headrace.ingest.engine.threads import join_until, start_threads

S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Pull = Callable[[], tuple[S, Snapshot | None]]
"""Next input and the source's state after it; StopIteration at the end. Called by one thread at a time."""


@dataclass
class RunTimes:
    """Seconds, summed over the threads of a run."""

    pull_s: float = 0.0
    apply_s: float = 0.0
    blocked_s: float = 0.0


class Run(Protocol[T_co]):
    """Results of one pass over a source, from a reset to the next."""

    times: RunTimes
    threads: list[threading.Thread]

    @property
    def depth(self) -> int:
        """Results ready to be taken."""

    def take(self, timeout_s: float | None) -> tuple[T_co, Snapshot | None]:
        """Next result in order, and the source's state after its input."""

    def ready(self, timeout_s: float) -> bool:
        """Wait for at most `timeout_s` until `take` would not wait; False when it still would."""

    def signal_stop(self) -> None:
        """Ask for the end, without waiting; whoever waits in `take` gets NodeClosedError."""

    def join(self, timeout_s: float) -> list[str]:
        """Wait for the threads to end; names of those that did not."""


class InlineRun(Generic[S, T]):
    """Without threads: a result is made when it is taken."""

    def __init__(self, pull: Pull[S], apply: Callable[[S], T]) -> None:
        self.times = RunTimes()
        self.threads: list[threading.Thread] = []
        self._pull = pull
        self._apply = apply

    depth = 0

    def ready(self, timeout_s: float) -> bool:
        return True

    def take(self, timeout_s: float | None) -> tuple[T, Snapshot | None]:
        started = time.perf_counter()
        item, state = self._pull()
        pulled = time.perf_counter()
        try:
            result = apply_to(self._apply, item)
        finally:
            self.times.pull_s += pulled - started
            self.times.apply_s += time.perf_counter() - pulled
        return result, state

    def signal_stop(self) -> None:
        """Nothing waits here; the source is interrupted for itself."""

    def join(self, timeout_s: float) -> list[str]:
        return []


@dataclass(frozen=True)
class _Done:
    value: Any
    state: Snapshot | None


@dataclass(frozen=True)
class _Failed:
    error: BaseException


class _End:
    """The source ended."""


_Outcome = _Done | _Failed | _End


class OrderedRun(Generic[S, T]):
    """`num_workers` threads that take turns at the source and work side by side; results come in the source's order.

    Each input gets a number when it is pulled. With p inputs pulled and t results taken, ``p - t <= capacity`` always,
    and results t, t + 1, ... are handed out in this order: an end or an error stands at its own number, so that what
    was pulled before it is delivered first. After either nothing more is pulled.

    The threads know the run, never the node that owns it, so that dropping the node stops them (its finalizer calls
    ``signal_stop``). The lock is re-entrant because a finalizer or a signal handler may run while it is held.

    The consumer may be the main thread, where a signal handler can raise behind any call. It waits outside of the lock,
    on a lock of that wait alone, so that wherever it is interrupted nothing stays held (a `Condition`, which gives the
    lock back and takes it again, may be left in between). The result that it was to take may then be lost: the node
    that owns the run refuses to go on.
    """

    def __init__(self, name: str, pull: Pull[S], apply: Callable[[S], T], *, num_workers: int, capacity: int) -> None:
        self.times = RunTimes()
        self.threads: list[threading.Thread] = []
        self._name = name
        self._pull = pull
        self._apply = apply
        self._num_workers = num_workers
        self._capacity = capacity
        self._lock = threading.RLock()
        self._may_pull = threading.Condition(self._lock)
        self._waiting: threading.Lock | None = None  # held; its release wakes the consumer
        self._outcomes: dict[int, _Outcome] = {}
        self._pulled = self._taken = 0
        self._pulling = self._finished = self._stopping = False
        self._alive = 0
        self._crash: BaseException | None = None
        self._pid = os.getpid()

    @property
    def depth(self) -> int:
        return len(self._outcomes)

    # ---- the consumer's side --------------------------------------------------------------------------------------

    def take(self, timeout_s: float | None) -> tuple[T, Snapshot | None]:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self._name}: the process was forked while its threads ran; "
                "build the pipeline in the child, or start it by 'spawn' (threads do not survive a fork)"
            )
        self._start()
        if not self._wait(timeout_s):
            raise TimeoutError(f"{self._name}: no item within timeout_s={timeout_s:g} s; its source is slow or stuck")
        with self._lock:
            outcome = self._head()
            if isinstance(outcome, _End):
                raise StopIteration
            del self._outcomes[self._taken]
            if isinstance(outcome, _Failed):
                try:
                    raise outcome.error
                finally:
                    del outcome  # else error -> traceback -> this frame -> error, and the run with it
            self._taken += 1
            self._may_pull.notify()
            return outcome.value, outcome.state

    def ready(self, timeout_s: float) -> bool:
        self._start()
        return self._wait(timeout_s)

    def _start(self) -> None:
        with self._lock:
            if not self.threads and not self._stopping:
                self._alive = self._num_workers
                start_threads(self, _work, self._name, self._num_workers)

    def _wait(self, timeout_s: float | None) -> bool:
        """Until the consumer need not wait any more; False when the time is over before."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waiting = threading.Lock()
        waiting.acquire()
        while True:
            with self._lock:
                self._waiting = waiting  # before the look: a handler may stop the run right behind it
                if self._stopping or self._taken in self._outcomes or self._crash is not None or self._alive == 0:
                    return True
            left = -1.0 if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
            if deadline is not None and left <= 0:
                return False
            waiting.acquire(timeout=left)

    def _wake(self) -> None:
        """Wake the consumer; under the lock."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.release()

    def _head(self) -> _Outcome:
        """The next result, for which there is nothing to wait; under the lock."""
        if self._stopping:
            raise NodeClosedError(f"{self._name} was closed or reset while next() waited in it")
        outcome = self._outcomes.get(self._taken)
        if outcome is None:
            raise RuntimeError(f"{self._name}: a worker thread died") from self._crash
        return outcome

    def signal_stop(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has none of the threads, and one of them may have held the lock
        with self._lock:
            self._stopping = True
            dropped, self._outcomes = self._outcomes, {}
            self._may_pull.notify_all()
            self._wake()
        del dropped  # items may run code of their own when they go: not under the lock

    def join(self, timeout_s: float) -> list[str]:
        return join_until(self.threads, time.monotonic() + timeout_s)

    # ---- the workers' side ----------------------------------------------------------------------------------------

    def _claim(self) -> int | None:
        """Wait for a turn at the source; the number of the input to pull, or None when there is no more to do."""
        started = time.perf_counter()
        with self._lock:
            while not (self._stopping or self._finished):
                full = self._pulled - self._taken >= self._capacity
                if not full and not self._pulling:
                    self._pulling = True
                    self._pulled += 1
                    return self._pulled - 1
                self._may_pull.wait()
                if full:
                    now = time.perf_counter()
                    self.times.blocked_s += now - started
                    started = now
            return None

    def _produce(self, number: int) -> None:
        started = time.perf_counter()
        outcome = _try_pull(self._pull)
        pulled = time.perf_counter()
        with self._lock:
            self._pulling = False
            self._finished = self._finished or not isinstance(outcome, _Done)
            self.times.pull_s += pulled - started
            self._may_pull.notify()
        if isinstance(outcome, _Done):
            outcome = _try_apply(self._apply, outcome)
        with self._lock:
            self.times.apply_s += time.perf_counter() - pulled
            if not isinstance(outcome, _Done):
                self._finished = True
                self._may_pull.notify_all()
            if not self._stopping:
                self._outcomes[number] = outcome
            if number == self._taken:
                self._wake()
        del outcome  # an error's traceback reaches this frame, as the caller of the one that caught it

    def _left(self, crash: BaseException | None) -> None:
        with self._lock:
            self._alive -= 1
            self._crash = self._crash or crash
            self._wake()
            self._may_pull.notify_all()


def apply_to(function: Callable[[S], T], item: S) -> T:
    """``function(item)``; a StopIteration out of it is an error, not the end of the stream (as in generators)."""
    try:
        return function(item)
    except StopIteration as error:
        raise RuntimeError(f"{function!r} raised StopIteration") from error


def _try_pull(pull: Pull[Any]) -> _Outcome:
    try:
        return _Done(*pull())
    except StopIteration:
        return _End()
    except BaseException as error:
        return _Failed(error)


def _try_apply(function: Callable[[Any], Any], pulled: _Done) -> _Outcome:
    try:
        return _Done(apply_to(function, pulled.value), pulled.state)
    except BaseException as error:
        return _Failed(error)


def _work(run: OrderedRun[Any, Any]) -> None:
    crash: BaseException | None = None
    try:
        while (number := run._claim()) is not None:
            run._produce(number)
    except BaseException as error:  # an asynchronous exception between two statements
        crash = error
    finally:
        run._left(crash)
