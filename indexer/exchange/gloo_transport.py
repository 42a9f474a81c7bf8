"""Gloo as a transport: a group of its own beside the one that trains.

A gloo request cannot be asked whether it is done, and a wait that times out breaks the connections of all lanes. So
each lane has a thread a peer that waits for its requests in their order, without a limit; who waits keeps the limit.
The thread is given requests when somebody waits for them, all of a peer at once: by then most are done, and it is woken
once for them, not twice for each.
A thread that came back from gloo while the interpreter ends would abort the process (it is ended where C++ does not
expect it), so that `close` breaks the connections on purpose, and with them these waits, before it returns.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from headrace.formats.monitor import Monitor
from headrace.indexer.exchange.errors import ExchangeClosedError, RankLostError
from headrace.indexer.exchange.transport import U8, Lane, Waiting

_CLOSE_TIMEOUT_S = 30.0
"""How long a rank that closes waits for the others to close: what it sent last may still be on its way."""

_EXIT_TIMEOUT_S = 5.0
"""The same where nobody has closed it, which may be because of an error that the others wait for."""

_JOIN_TIMEOUT_S = 10.0

_NEVER = datetime.timedelta(days=365)
_AT_ONCE = datetime.timedelta(milliseconds=1)


class GlooTransport:
    """The ranks of ``torch.distributed``, which must be initialised on all of them; made on all at once."""

    name = "gloo"
    max_tag = (1 << 31) - 1
    watched = True

    def __init__(self, timeout_s: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "torch.distributed is not initialised: start the ranks with torchrun and call "
                "torch.distributed.init_process_group() first"
            )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group: Any = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))

        self._close_timeout_s = min(timeout_s, _CLOSE_TIMEOUT_S)
        self._lock = threading.Lock()
        self._lanes: list[_GlooLane] = []
        self._closed = self._failed = self._over = False
        self._closing = threading.Lock()
        atexit.register(self._close_at_exit)

    def lane(self, tag: int) -> Lane:
        with self._lock:
            if self._closed:
                raise ExchangeClosedError("this rank closes")
            self._lanes = [lane for lane in self._lanes if not lane.is_over]
            self._lanes.append(_GlooLane(self._group, tag, self.rank))
            return self._lanes[-1]

    def end_all(self) -> None:
        """The others find the connections of this process closed when it closes; torchrun ends them, too."""
        self._failed = True

    def close(self) -> None:
        """Wait for the others to close, 30 s at most; then end the connections and the threads that wait for them."""
        self._close(self._close_timeout_s)

    def _close_at_exit(self) -> None:
        self._close(min(self._close_timeout_s, _EXIT_TIMEOUT_S))

    def _close(self, limit_s: float) -> None:
        with self._closing:
            if self._over:
                return
            with self._lock:
                meet, self._closed = not (self._closed or self._failed), True
            self._interrupt()  # nobody begins anything from here on
            if meet:
                self._meet(time.monotonic() + limit_s)
                self._interrupt()
            for lane in self._lanes:
                lane.break_off()
            deadline = time.monotonic() + _JOIN_TIMEOUT_S
            for lane in self._lanes:
                lane.join(deadline)
            self._over = True
        atexit.unregister(self._close_at_exit)

    def _interrupt(self) -> None:
        for lane in self._lanes:
            lane.interrupt()

    def _meet(self, deadline: float) -> None:
        """Wait until each of the others closes, too, or is gone."""
        closing = _GlooLane(self._group, self.max_tag, self.rank)
        self._lanes.append(closing)
        peers = [peer for peer in range(self.size) if peer != self.rank]
        word = np.zeros(1, np.uint8)
        waiting = [(peer, (closing.receive(np.empty(1, np.uint8), peer), closing.send(word, peer))) for peer in peers]
        for peer, requests in waiting:
            with contextlib.suppress(RankLostError):
                closing.wait([(peer, request) for request in requests], max(0.0, deadline - time.monotonic()))


class _Request:
    """Something sent or received; the tensor keeps the memory alive. Without `work` it could not be begun."""

    def __init__(self, peer: int, work: Any, tensor: torch.Tensor, error: str | None = None) -> None:
        self.peer, self.work, self.tensor, self.error = peer, work, tensor, error
        self.done = False
        self.given = False  # to the thread that waits for it


_Requests = queue.SimpleQueue[list[_Request] | None]


class _GlooLane:
    def __init__(self, group: Any, tag: int, rank: int) -> None:
        self._group, self._tag, self._rank = group, tag, rank
        self._monitor = Monitor()  # of what follows
        self._closed = False
        self._under_way: list[_Request] = []
        self._waiters: dict[int, tuple[_Requests, threading.Thread]] = {}

    def send(self, data: U8, to: int) -> Any:
        return self._begin(self._group.send, to, torch.from_numpy(data if data.flags.writeable else data.copy()))

    def receive(self, buffer: U8, sender: int) -> Any:
        return self._begin(self._group.recv, sender, torch.from_numpy(buffer))

    def _begin(self, begin: Callable[..., Any], peer: int, tensor: torch.Tensor) -> _Request:
        """What has begun is always waited for: gloo loses a connection whose buffers are gone before their messages."""
        with self._monitor.lock:
            if self._closed:
                raise ExchangeClosedError("this rank closes")
            try:
                request = _Request(peer, begin([tensor], peer, self._tag), tensor)
            except RuntimeError as error:  # the connection is broken: who waits is told whose
                return _Request(peer, None, tensor, _first_line(error))
            self._under_way.append(request)
        return request

    def _give(self, requests: Sequence[_Request]) -> None:
        """Let threads wait for those that are not waited for yet; the caller holds the lock."""
        by_peer: dict[int, list[_Request]] = {}
        for request in requests:
            if not request.given and request.error is None:
                request.given = True
                by_peer.setdefault(request.peer, []).append(request)
        for peer, some in by_peer.items():
            if peer not in self._waiters:
                waiting: _Requests = queue.SimpleQueue()
                arguments = (waiting, self._monitor)
                name = f"headrace-gloo-{peer}"
                thread = threading.Thread(target=_wait_for_all, args=arguments, daemon=True, name=name)
                self._waiters[peer] = waiting, thread
                thread.start()
            self._waiters[peer][0].put(some)

    def wait(self, waiting: Waiting, timeout_s: float) -> list[int]:
        requests = [request for _, request in waiting]

        def is_over() -> bool:
            if all(request.done for request in requests):
                return True
            if self._closed:
                raise ExchangeClosedError("this rank closes")
            return any(request.error for request in requests)

        with self._monitor.lock:
            self._give(self._up_to(requests))
        self._monitor.wait_for(is_over, timeout_s)
        with self._monitor.lock:
            self._under_way[:] = [r for r in self._under_way if not (r.done or r.error)]
        self._raise_lost(requests)
        return [request.peer for request in requests if not request.done]

    def _up_to(self, requests: Sequence[_Request]) -> list[_Request]:
        """What is under way up to the last of the requests: what nobody waits for must not pile up."""
        ordered = [request for request in requests if request.error is None]
        if not ordered or ordered[-1] not in self._under_way:
            return ordered
        return self._under_way[: self._under_way.index(ordered[-1]) + 1]

    def _raise_lost(self, requests: Sequence[_Request]) -> None:
        lost = [request for request in requests if request.error]
        if lost:
            raise RankLostError(self._rank, [r.peer for r in lost], "a message", str(lost[0].error))

    def break_off(self) -> None:
        """End what is under way, and the connections with it: a wait that times out does that to all of them."""
        with self._monitor.lock:
            left = [r for r in self._under_way if not (r.done or r.error)]
        for request in left:
            with contextlib.suppress(RuntimeError):
                request.work.wait(_AT_ONCE)

    def join(self, deadline: float) -> None:
        """Wait for the threads of a lane that is closed, with nothing under way any more."""
        for _, thread in self._waiters.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def interrupt(self) -> None:
        with self._monitor.lock:
            self._closed = True
            self._give(self._under_way)
            self._monitor.changed()
            for requests, _ in self._waiters.values():
                requests.put(None)  # the thread ends behind what is under way

    @property
    def is_over(self) -> bool:
        """Whether it is closed and nothing is under way."""
        with self._monitor.lock:
            return self._closed and all(r.done or r.error for r in self._under_way)


def _wait_for_all(waiting: _Requests, monitor: Monitor) -> None:
    while (requests := waiting.get()) is not None:
        for request in requests:
            try:
                request.work.wait(_NEVER)
            except RuntimeError as error:
                request.error = _first_line(error)
                with monitor.lock:
                    monitor.changed()  # who waits need not hear of the others
            else:
                request.done = True
        with monitor.lock:
            monitor.changed()


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
