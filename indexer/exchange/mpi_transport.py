"""MPI as a transport (mpi4py). Nothing of MPI is loaded before a transport is made."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.indexer.exchange.errors import ExchangeClosedError
from headrace.indexer.exchange.transport import U8, Lane, Waiting

_EAGER_POLLS = 50


def launched_ranks() -> int:
    """Ranks that an MPI launcher has started, by its environment; 1 without one. Does not load MPI."""
    return max(int(os.environ.get(name, "1")) for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"))


def load_mpi() -> Any:
    """The module ``mpi4py.MPI``. RuntimeError where it, or a runtime, is not installed (mpi4py raises ImportError or
    RuntimeError), or where threads may not all send and receive."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"the ranks need mpi4py and an MPI runtime ({error}): pip install 'headrace[mpi]' installs both, and "
            "mpirun of the same environment starts the ranks"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "this MPI has no MPI_THREAD_MULTIPLE: the loader and the trainer are threads that both send and receive; "
            "do not lower mpi4py.rc.thread_level, or use another MPI (pip install mpich)"
        )
    return MPI


class MpiTransport:
    """The ranks of COMM_WORLD, under a communicator of our own, so that no message of the user's meets ours."""

    name = "mpi"
    watched = True

    def __init__(self) -> None:
        self._mpi = load_mpi()
        self._comm = self._mpi.COMM_WORLD.Dup()
        self.rank, self.size = int(self._comm.Get_rank()), int(self._comm.Get_size())
        self.max_tag = int(self._comm.Get_attr(self._mpi.TAG_UB))
        self._lanes: list[_MpiLane] = []
        self._lock = threading.Lock()
        self._ended = False
        # MPI's own end comes behind the interpreter's, and still takes what others send, and sends what they take.
        atexit.register(self._keep_buffers)

    def lane(self, tag: int) -> Lane:
        with self._lock:
            if self._ended:
                raise ExchangeClosedError("this rank ends")
            self._lanes = [lane for lane in self._lanes if not lane.is_over]
            self._lanes.append(_MpiLane(self._comm, tag))
            return self._lanes[-1]

    def _keep_buffers(self) -> None:
        """Let what is under way keep its memory until the process ends, and no thread call MPI any more."""
        with self._lock:
            self._ended = True
        for lane in self._lanes:
            lane.keep_buffers()

    def end_all(self) -> None:
        sys.stderr.flush()
        time.sleep(0.3)  # the launcher drops what it has not read from a rank when it ends
        self._comm.Abort(1)

    def close(self) -> None:
        """The duplicate is freed by MPI's own end: freeing it is collective, and another rank may be gone."""


class _MpiLane:
    def __init__(self, comm: Any, tag: int) -> None:
        self._comm, self._tag = comm, tag
        self._closed = threading.Event()
        self._ended = False
        self._under_way: list[Any] = []  # with their buffers, which MPI may fill after a run was broken off
        # MPI forbids two threads to test one request: who waits, and who looks whether a closed lane is over.
        self._testing = threading.Lock()

    def send(self, data: U8, to: int) -> Any:
        return self._begun(self._comm.Isend, data, to)

    def receive(self, buffer: U8, sender: int) -> Any:
        return self._begun(self._comm.Irecv, buffer, sender)

    def _begun(self, begin: Callable[[U8, int, int], Any], data: U8, peer: int) -> Any:
        with self._testing:
            if self._closed.is_set():
                raise ExchangeClosedError("this rank closes")
            request = begin(data, peer, self._tag)
            self._under_way.append(request)
        return request

    def _done(self, request: Any) -> bool:
        with self._testing:
            return not self._ended and bool(request.Test())

    @property
    def is_over(self) -> bool:
        """Whether it is closed and nothing is under way."""
        return self._closed.is_set() and all(self._done(request) for request in list(self._under_way))

    def wait(self, waiting: Waiting, timeout_s: float) -> list[int]:
        deadline, polls = time.monotonic() + timeout_s, 0
        left = list(waiting)
        while left := [(peer, request) for peer, request in left if not self._done(request)]:
            if self._closed.is_set():
                raise ExchangeClosedError("this rank closes")
            if time.monotonic() > deadline:
                return [peer for peer, _ in left]
            polls += 1
            time.sleep(0.0 if polls < _EAGER_POLLS else 1e-4)
        done = {id(request) for _, request in waiting}
        with self._testing:
            self._under_way = [request for request in self._under_way if id(request) not in done]
        return []

    def interrupt(self) -> None:
        self._closed.set()

    def keep_buffers(self) -> None:
        """Never give the memory of unfinished requests back: a reference more, which nobody drops."""
        self._closed.set()
        with self._testing:
            self._ended = True
            for request in self._under_way:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
