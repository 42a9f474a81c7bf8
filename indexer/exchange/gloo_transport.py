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
from collections.abc import Sequence
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
        """Tell each peer which receives from it are still open; it fills them with zeros, as we do for it."""
        closing = _GlooLane(self._group, self.max_tag, self.rank)
        peers = [peer for peer in range(self.size) if peer != self.rank]
        wanted = {peer: [pair for lane in self._lanes for pair in lane.open_receives(peer)] for peer in peers}
        counts = {peer: np.zeros(1, np.int64) for peer in peers}
        waiting = [(p, closing.receive(counts[p].view(np.uint8), p)) for p in peers]
        for peer in peers:
            closing.send(np.array([len(wanted[peer])], np.int64).view(np.uint8), peer)
            if wanted[peer]:
                closing.send(np.array(wanted[peer], np.int64).reshape(-1).view(np.uint8), peer)
        closing.wait(waiting, max(0.0, deadline - time.monotonic()))
        asked = {p: np.zeros((int(counts[p][0]), 2), np.int64) for p, r in waiting if r.done and counts[p][0]}
        waiting = [(p, closing.receive(a.reshape(-1).view(np.uint8), p)) for p, a in asked.items()]
        closing.wait(waiting, max(0.0, deadline - time.monotonic()))
        for peer, pairs in asked.items():
            for tag, size in pairs.tolist():
                dist.isend(torch.zeros(size, dtype=torch.uint8), peer, group=self._group, tag=tag)
        for lane in self._lanes:
            lane.wait_for_all(deadline)


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


class _GlooLane:
    def __init__(self, group: Any, tag: int, rank: int) -> None:
        self._group, self._tag, self._rank = group, tag, rank
        self._changed = threading.Condition()
        self._closed = False
        self._under_way: list[_Request] = []
        self._waiters: dict[int, queue.SimpleQueue[_Request]] = {}

    def send(self, data: U8, to: int) -> Any:
        tensor = torch.from_numpy(data if data.flags.writeable else data.copy())
        return self._begin(to, dist.isend(tensor, to, group=self._group, tag=self._tag), tensor, False)

    def receive(self, buffer: U8, sender: int) -> Any:
        tensor = torch.from_numpy(buffer)
        return self._begin(sender, dist.irecv(tensor, sender, group=self._group, tag=self._tag), tensor, True)

    def _begin(self, peer: int, work: Any, tensor: torch.Tensor, receives: bool) -> _Request:
        request = _Request(peer, work, tensor, receives=receives)
        with self._changed:
            self._under_way[:] = [r for r in self._under_way if not (r.done or r.error)]
            self._under_way.append(request)
        if peer not in self._waiters:
            requests = self._waiters[peer] = queue.SimpleQueue()
            name = f"headrace-gloo-{peer}"
            threading.Thread(target=_wait_for_all, args=(requests, self._changed), daemon=True, name=name).start()
        self._waiters[peer].put(request)
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

    def open_receives(self, peer: int) -> list[tuple[int, int]]:
        """(tag, bytes) of each message that has not come from `peer`."""
        with self._changed:
            mine = [r for r in self._under_way if r.receives and r.peer == peer and not (r.done or r.error)]
            return [(self._tag, r.tensor.numel()) for r in mine]

    def wait_for_all(self, deadline: float) -> None:
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            self._changed.wait_for(lambda: all(r.done or r.error for r in self._under_way), left)

    def interrupt(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _wait_for_all(requests: queue.SimpleQueue[_Request], changed: threading.Condition) -> None:
    while True:
        request = requests.get()
        try:
            request.work.wait(_NEVER)
        except RuntimeError as error:
            request.error = str(error).splitlines()[0]
        with changed:
            request.done = request.error is None
            changed.notify_all()
