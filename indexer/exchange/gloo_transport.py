"""Gloo as a transport: a group of its own beside the one that trains.

A gloo request cannot be asked whether it is done, and a wait that times out breaks the connections of all lanes. So
each lane has a thread a peer that waits for its requests in their order, without a limit; who waits keeps the limit.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from headrace.indexer.exchange.errors import ExchangeClosedError, RankLostError
from headrace.indexer.exchange.transport import U8, Lane, Waiting

_CLOSE_TIMEOUT_S = 5.0

_NEVER = datetime.timedelta(days=365)


class GlooTransport:
    """The ranks of ``torch.distributed``, which must be initialised on all of them; made on all at once."""

    name = "gloo"
    max_tag = (1 << 31) - 1

    def __init__(self, timeout_s: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "torch.distributed is not initialised: start the ranks with torchrun and call "
                "torch.distributed.init_process_group() first"
            )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group: Any = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))

        self._lanes: list[_GlooLane] = []
        self._closed = False
        self._exit = atexit.register(_close_at_exit, weakref.ref(self))

    def lane(self, tag: int) -> Lane:
        self._lanes = [lane for lane in self._lanes if not lane.is_over]
        lane = _GlooLane(self._group, tag, self.rank)
        self._lanes.append(lane)
        return lane

    def end_all(self) -> None:
        """The others find the connections of this process closed when it ends; torchrun ends them, too."""
        self._closed = True

    def close(self) -> None:
        """Fill what the ranks still wait for in runs that were broken off; waits for them a few seconds at most.

        A thread that is inside gloo when the interpreter ends would abort the process.
        """
        if not self._closed:
            self._closed = True
            with contextlib.suppress(RuntimeError, OSError):
                self._fill_pending(time.monotonic() + _CLOSE_TIMEOUT_S)
        atexit.unregister(self._exit)

    def _fill_pending(self, deadline: float) -> None:
        """Tell each peer what is still under way between us; each does the other half of what the other has."""
        closing = _GlooLane(self._group, self.max_tag, self.rank)
        peers = [peer for peer in range(self.size) if peer != self.rank]
        mine = {peer: _counted(pair for lane in self._lanes for pair in lane.open_messages(peer)) for peer in peers}
        told = {peer: np.zeros(1, np.int64) for peer in peers}
        waiting = [(p, closing.receive(told[p].view(np.uint8), p)) for p in peers]
        for peer in peers:
            rows = np.array([(*key, n) for key, n in mine[peer].items()], np.int64).reshape(-1)
            closing.send(np.array([len(rows)], np.int64).view(np.uint8), peer)
            if len(rows):
                closing.send(rows.view(np.uint8), peer)
        closing.wait(waiting, max(0.0, deadline - time.monotonic()))
        theirs = {p: np.zeros(int(told[p][0]), np.int64) for p, request in waiting if request.done and told[p][0] > 0}
        closing.wait(
            [(p, closing.receive(a.view(np.uint8), p)) for p, a in theirs.items()],
            max(0.0, deadline - time.monotonic()),
        )
        for peer, rows in theirs.items():
            for tag, receives, size, count in rows.reshape(-1, 4).tolist():
                lane = _GlooLane(self._group, tag, self.rank)
                for _ in range(count - mine[peer].get((tag, 1 - receives, size), 0)):
                    half = np.zeros(size, np.uint8)
                    _ = lane.send(half, peer) if receives else lane.receive(half, peer)
                self._lanes.append(lane)
        for lane in (*self._lanes, closing):
            lane.end(deadline)


def _counted(messages: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int, int], int]:
    return dict(Counter(messages))


def _close_at_exit(transport: weakref.ref[GlooTransport]) -> None:
    found = transport()
    if found is not None:
        found.close()


class _Request:
    """Something sent or received; the tensor keeps the memory alive."""

    def __init__(self, peer: int, work: Any, tensor: torch.Tensor, *, receives: bool) -> None:
        self.peer, self.work, self.tensor, self.receives = peer, work, tensor, receives
        self.done = False
        self.error: str | None = None


_Requests = queue.SimpleQueue[_Request | None]


class _GlooLane:
    def __init__(self, group: Any, tag: int, rank: int) -> None:
        self._group, self._tag, self._rank = group, tag, rank
        self._changed = threading.Condition()
        self._closed = False
        self._under_way: list[_Request] = []
        self._waiters: dict[int, tuple[_Requests, threading.Thread]] = {}

    def send(self, data: U8, to: int) -> Any:
        tensor = torch.from_numpy(data if data.flags.writeable else data.copy())
        return self._begin(dist.isend, to, tensor)

    def receive(self, buffer: U8, sender: int) -> Any:
        return self._begin(dist.irecv, sender, torch.from_numpy(buffer))

    def _begin(self, begin: Callable[..., Any], peer: int, tensor: torch.Tensor) -> _Request:
        """What has begun is always waited for: gloo loses a connection whose buffers are gone before their messages."""
        with self._changed:
            if self._closed:
                raise ExchangeClosedError("this rank closes")
            work = begin(tensor, peer, group=self._group, tag=self._tag)
            request = _Request(peer, work, tensor, receives=begin is dist.irecv)
            self._under_way[:] = [r for r in self._under_way if not (r.done or r.error)]
            self._under_way.append(request)
            if peer not in self._waiters:
                requests: _Requests = queue.SimpleQueue()
                arguments = (requests, self._changed)
                name = f"headrace-gloo-{peer}"
                thread = threading.Thread(target=_wait_for_all, args=arguments, daemon=True, name=name)
                self._waiters[peer] = requests, thread
                thread.start()
            self._waiters[peer][0].put(request)
        return request

    def wait(self, waiting: Waiting, timeout_s: float) -> list[int]:
        deadline = time.monotonic() + timeout_s
        requests = [request for _, request in waiting]
        with self._changed:
            while not all(request.done for request in requests):
                if self._closed:
                    raise ExchangeClosedError("this rank closes")
                left = deadline - time.monotonic()
                if left <= 0 or any(request.error for request in requests):
                    break
                self._changed.wait(left)
        self._raise_lost(requests)
        return [request.peer for request in requests if not request.done]

    def _raise_lost(self, requests: Sequence[_Request]) -> None:
        lost = [request for request in requests if request.error]
        if lost:
            raise RankLostError(self._rank, [r.peer for r in lost], "a message", str(lost[0].error))

    def open_messages(self, peer: int) -> list[tuple[int, int, int]]:
        """(tag, 1 if it is received else 0, bytes) of each message with `peer` that is not done."""
        with self._changed:
            left = [r for r in self._under_way if r.peer == peer and not (r.done or r.error)]
            return [(self._tag, int(r.receives), r.tensor.numel()) for r in left]

    def end(self, deadline: float) -> None:
        """End the threads, each after all that it waits for."""
        for requests, thread in self._waiters.values():
            requests.put(None)
            thread.join(max(0.0, deadline - time.monotonic()))

    def interrupt(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for requests, _ in self._waiters.values():
                requests.put(None)  # the thread ends behind what is under way

    @property
    def is_over(self) -> bool:
        """Whether it is closed and nothing is under way."""
        with self._changed:
            return self._closed and all(r.done or r.error for r in self._under_way)


def _wait_for_all(requests: _Requests, changed: threading.Condition) -> None:
    while (request := requests.get()) is not None:
        try:
            request.work.wait(_NEVER)
        except RuntimeError as error:
            request.error = str(error).splitlines()[0]
        with changed:
            request.done = request.error is None
            changed.notify_all()
