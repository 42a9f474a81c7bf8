"""Ranks in one process, for tests: threads that send to each other.

With a seed the ranks run one at a time, each until it waits, and who goes on is drawn: every interleaving of messages
can come, the same seed gives the same one, and a deadlock is found at once instead of after a timeout.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from headrace.formats.monitor import Monitor
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.exchange.errors import ExchangeClosedError, RankLostError
from headrace.indexer.exchange.transport import U8, Lane, Waiting

T = TypeVar("T")

ENDING_S = 60.0  # for all ranks to end beyond the waits of two of them


def run_ranks(
    size: int,
    function: Callable[[Communicator], T],
    *,
    seed: int | None = None,
    timeout_s: float = 300.0,
    shared_memory: bool = True,
) -> list[T]:
    """What `function` gives on each of `size` ranks; the first error of any is raised when all have ended.

    With `seed` the ranks take turns, and each must do all its sending and waiting in the thread that calls `function`.
    """
    world = SimulatedWorld(size, seed=seed)
    results: list[Any] = [None] * size
    errors: list[tuple[float, BaseException]] = []

    def work(rank: int) -> None:
        communicator = Communicator(world.transport(rank), timeout_s=timeout_s, shared_memory=shared_memory)
        try:
            world.begin(rank)
            results[rank] = function(communicator)
        except BaseException as error:
            errors.append((time.monotonic(), error))
        finally:
            communicator.close()
            world.leave(rank)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    _join(threads, 2 * timeout_s + ENDING_S)
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError("a simulated rank did not end")
    return results


def _join(threads: Sequence[threading.Thread], limit_s: float) -> None:
    """Wait until all have ended, `limit_s` at most; time in which this process was stopped counts as a second."""
    left = limit_s
    for thread in threads:
        while thread.is_alive() and left > 0:
            begin = time.monotonic()
            thread.join(min(1.0, left))
            left -= min(1.0, time.monotonic() - begin)


class _Request:
    """A message, from both ends: data that was sent, and where it is wanted."""

    def __init__(self, buffer: U8 | None) -> None:
        self.buffer = buffer
        self.done = False


class SimulatedWorld:
    """Messages between the ranks of one process. A rank that left is gone: who waits for it gets RankLostError."""

    def __init__(self, size: int, *, seed: int | None = None) -> None:
        self.size = size
        self._monitor = Monitor()  # of what follows
        self._sent: dict[tuple[int, int, int], deque[U8]] = defaultdict(deque)
        self._wanted: dict[tuple[int, int, int], deque[_Request]] = defaultdict(deque)
        self._gone: set[int] = set()
        self._rng = None if seed is None else np.random.default_rng(seed)
        self._turns = [threading.Semaphore(0) for _ in range(size)]  # with a seed: one is free, or none
        self._ready: dict[int, Callable[[], bool]] = {}  # with a seed: who waits, and until when
        self._begun = 0

    @property
    def takes_turns(self) -> bool:
        return self._rng is not None

    def transport(self, rank: int) -> SimulatedTransport:
        return SimulatedTransport(self, rank)

    def begin(self, rank: int) -> None:
        """With a seed: wait until all are there, and for the first turn."""
        if self._rng is None:
            return
        with self._monitor.lock:
            self._begun += 1
            self._ready[rank] = lambda: True
            if self._begun == self.size:
                self._pass_on()
        self._turns[rank].acquire()

    def leave(self, rank: int) -> None:
        with self._monitor.lock:
            self._gone.add(rank)
            if self._rng is not None:
                self._ready.pop(rank, None)
                self._pass_on()
            self._monitor.changed()

    def _pass_on(self) -> None:
        assert self._rng is not None
        able = sorted(rank for rank, ready in self._ready.items() if ready())
        able = able or sorted(self._ready)  # a deadlock: one of them finds out
        if able:
            rank = able[int(self._rng.integers(len(able)))]
            del self._ready[rank]
            self._turns[rank].release()

    def send(self, data: U8, path: tuple[int, int, int]) -> _Request:
        request = _Request(None)
        with self._monitor.lock:
            wanted = self._wanted[path]
            if wanted:
                self._fill(wanted.popleft(), data)
            else:
                self._sent[path].append(data.copy())
            request.done = True
            if self._rng is None:
                self._monitor.changed()
        return request

    def receive(self, buffer: U8, path: tuple[int, int, int]) -> _Request:
        request = _Request(buffer)
        with self._monitor.lock:
            sent = self._sent[path]
            if sent:
                self._fill(request, sent.popleft())
            else:
                self._wanted[path].append(request)
        return request

    @staticmethod
    def _fill(request: _Request, data: U8) -> None:
        assert request.buffer is not None
        if len(request.buffer) != len(data):
            raise RuntimeError(f"a message of {len(data)} bytes for a buffer of {len(request.buffer)}")
        request.buffer[:] = data
        request.done = True

    def wait(self, rank: int, lane: SimulatedLane, waiting: Waiting, timeout_s: float) -> list[int]:
        def late() -> list[int]:
            return [peer for peer, request in waiting if not request.done]

        def over() -> bool:
            left = late()
            return not left or lane.closed or not self._gone.isdisjoint(left)

        if self._rng is not None:
            with self._monitor.lock:
                self._ready[rank] = over
                self._pass_on()
            self._turns[rank].acquire()
        else:
            self._monitor.wait_for(over, timeout_s)
        with self._monitor.lock:
            left = late()
            if left and lane.closed:
                raise ExchangeClosedError("this rank closes")
            lost = [peer for peer in left if peer in self._gone]
            if lost:
                raise RankLostError(rank, lost, "a message", "it has ended")
            return left

    def interrupt(self, lane: SimulatedLane) -> None:
        with self._monitor.lock:
            lane.closed = True
            self._monitor.changed()


class SimulatedTransport:
    name = "simulated"
    max_tag = (1 << 31) - 1

    def __init__(self, world: SimulatedWorld, rank: int) -> None:
        self.world, self.rank, self.size = world, rank, world.size
        self.watched = not world.takes_turns

    def lane(self, tag: int) -> Lane:
        return SimulatedLane(self.world, self.rank, tag)

    def end_all(self) -> None:
        """The others notice that this rank has left."""

    def close(self) -> None:
        """Nothing is held."""


class SimulatedLane:
    def __init__(self, world: SimulatedWorld, rank: int, tag: int) -> None:
        self._world, self._rank, self._tag = world, rank, tag
        self.closed = False

    def send(self, data: U8, to: int) -> Any:
        return self._world.send(data, (self._rank, to, self._tag))

    def receive(self, buffer: U8, sender: int) -> Any:
        return self._world.receive(buffer, (sender, self._rank, self._tag))

    def wait(self, waiting: Waiting, timeout_s: float) -> list[int]:
        return self._world.wait(self._rank, self, waiting, timeout_s)

    def interrupt(self) -> None:
        self._world.interrupt(self)
