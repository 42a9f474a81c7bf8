"""Messages between the ranks of a benchmark. Every wait is bounded, every size is checked before memory is taken."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

KEY = np.dtype([("id", "<u8"), ("table_missing", "<u4")])
"""A key as it travels: the id, and its table's ordinal << 1 | the missing flag."""

Keys = npt.NDArray[np.void]


def launched_ranks() -> int:
    """Ranks that an MPI launcher has started, by its environment; 1 without one. Does not load MPI."""
    return max(int(os.environ.get(name, "1")) for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"))


def open_world() -> Any:
    """COMM_WORLD of mpi4py, which is loaded here only. RuntimeError unless all threads may send and receive."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise RuntimeError(f"the ranks need mpi4py ({error}): pip install 'headrace[mpi]'") from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError("this MPI has no MPI_THREAD_MULTIPLE: request streams are threads that send and receive")
    return MPI.COMM_WORLD


def end_all(comm: Any, error: BaseException) -> None:
    """Say what happened on this rank, and end the processes of all, which would wait for it in vain."""
    print(f"rank {comm.Get_rank()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    time.sleep(0.3)  # the launcher drops what it has not read from a rank when it ends
    comm.Abort(1)


def turns(rank: int, size: int, *, ring: bool) -> list[tuple[int, int]]:
    """(receiver, sender) of each turn: around the ring, each turn a permutation; or from rank 0 up, for all."""
    if ring:
        return [((rank + k) % size, (rank - k) % size) for k in range(1, size)]
    return [(peer, peer) for peer in range(size) if peer != rank]


class Link:
    """Messages of one stream, under one tag. TimeoutError names the ranks that were waited for."""

    def __init__(self, comm: Any, tag: int, timeout_s: float) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.bytes_sent = 0
        self._comm, self._tag, self._timeout_s = comm, tag, timeout_s

    def swap(self, sent: npt.NDArray[Any], to: int, received: npt.NDArray[Any], sender: int) -> None:
        """Send one array and fill another; the sizes are known on both sides."""
        self.bytes_sent += sent.nbytes
        self._wait([(sender, self._receive(received, sender)), (to, self._send(sent, to))], "a message")

    def swap_keys(self, sent: Keys, to: int, sender: int, limit: int) -> Keys:
        """As `swap`, for keys whose number the sender tells first; it is checked before any memory is taken."""
        count = np.empty(1, np.int64)
        self.swap(np.array([len(sent)], np.int64), to, count, sender)
        received: Keys = np.empty(check_count(int(count[0]), limit, sender), KEY)
        self.swap(sent, to, received, sender)
        return received

    def gather(self, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[size, n]: the rows of all ranks, of one length; no rank is past it before all have come."""
        rows = np.zeros((self.size, len(row)), row.dtype)
        rows[self.rank] = row
        peers = [peer for peer in range(self.size) if peer != self.rank]
        receives = [(peer, self._receive(rows[peer], peer)) for peer in peers]
        self._wait([*receives, *((peer, self._send(row, peer)) for peer in peers)], "its figures")
        return rows

    def _send(self, array: npt.NDArray[Any], to: int) -> Any:
        return self._comm.Isend(np.ascontiguousarray(array).view(np.uint8), to, self._tag)

    def _receive(self, array: npt.NDArray[Any], sender: int) -> Any:
        return self._comm.Irecv(array.view(np.uint8), sender, self._tag)

    def _wait(self, requests: list[tuple[int, Any]], what: str) -> None:
        deadline, polls = time.monotonic() + self._timeout_s, 0
        while pending := [peer for peer, request in requests if not request.Test()]:
            if time.monotonic() > deadline:
                late = ", ".join(map(str, sorted(set(pending))))
                raise TimeoutError(f"rank {self.rank} waited {self._timeout_s} s for {what} of rank {late}")
            polls += 1
            time.sleep(0.0 if polls < 50 else 1e-4)


def check_count(count: int, limit: int, sender: int) -> int:
    """The number of keys that `sender` announced. ValueError outside [0, limit]."""
    if not 0 <= count <= limit:
        raise ValueError(f"rank {sender} announces {count} keys; a batch has at most {limit}")
    return count
