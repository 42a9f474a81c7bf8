"""Communicator: the ranks that train together, whatever launched them."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any, Literal

import numpy.typing as npt

from headrace.indexer.checks import check_integer
from headrace.indexer.exchange.activity import Activity, Place
from headrace.indexer.exchange.agreement import agree
from headrace.indexer.exchange.channel import Channel, Traffic
from headrace.indexer.exchange.errors import ExchangeClosedError
from headrace.indexer.exchange.figures import gather_arrays
from headrace.indexer.exchange.mpi_transport import MpiTransport, launched_ranks
from headrace.indexer.exchange.node_channel import NodeChannel, SharedNodes
from headrace.indexer.exchange.transport import NoTransport, Transport
from headrace.indexer.exchange.watch import Watch

Backend = Literal["none", "mpi", "gloo"]

DEFAULT_TIMEOUT_S = 600.0

DEFAULT_CHUNK_BYTES = 1 << 20
"""Large messages travel in parts, so that both directions of a link are busy."""

_PURPOSE_BITS = 10
PURPOSES = {
    name: number
    for number, name in enumerate(
        (
            *("control", "requests", "replies", "rows", "gradients", "dense", "hot", "hot_requests", "entering"),
            *("steps", "deferred", "node_requests", "node_replies", "node_rows", "node_gradients", "saves", "figures"),
            *("held", "evaluated", "node_evaluated", "next_steps", "node_memory", "finite", "finite_evaluated"),
            "replaced",
        )
    )
}
"""Channels by name; those of `stream` follow."""

_AHEAD = ("requests", "replies", "hot_requests", "steps", "node_requests", "node_replies", "next_steps")
"""Those of a loader's thread."""

_WATCH = 63
_FIRST_STREAM = 64

_RUNS_REMEMBERED = 1000
"""The channels of so many runs are known to be closed; no thread lives on from a run that is older."""


class Communicator:
    """This process among those that train together; made by :func:`connect`, on all ranks alike.

    `timeout_s` bounds every wait for another rank: after it the error names the ranks that are missing. It must be
    longer than any rank may be busy with something else between two steps, such as an evaluation of its own.
    With `shared_memory` vectors and gradients between ranks of a node travel through memory that they share, where
    there is such memory (Linux); else, and without it, as all messages do.

    As a context manager it ends all ranks when the block raises, since they would wait in vain for this one. So does
    ``sys.exit`` of anything but 0 or None, which is no failure.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        chunk_bytes: int | None = None,
        shared_memory: bool = True,
    ) -> None:
        if isinstance(timeout_s, bool) or not 0 < timeout_s <= 1e6:
            raise ValueError(f"timeout_s is seconds up to a million, got {timeout_s!r}")
        self.timeout_s = float(timeout_s)
        self.chunk_bytes = None if chunk_bytes is None else check_integer("chunk_bytes", chunk_bytes, 1, 1 << 30)
        self._transport = transport
        self._nodes = SharedNodes(wanted=shared_memory)
        self._traffic: dict[str, Traffic] = {}
        self._shared: dict[str, Traffic] = {}
        self._lock = threading.Lock()
        self._runs = 0
        self._channels: dict[tuple[str, int], Channel] = {}
        self._over: dict[tuple[str, int], None] = {}  # closed, the oldest first
        self._closed = False
        self.activity = Activity()
        self._watch: Watch | None = None
        if transport.watched and transport.size > 1:
            self._watch = Watch(transport.lane(_WATCH), transport.rank, transport.size, self.activity)

    @property
    def backend(self) -> str:
        return self._transport.name

    @property
    def rank(self) -> int:
        return self._transport.rank

    @property
    def world_size(self) -> int:
        return self._transport.size

    def new_run(self) -> int:
        """The number of the next run of a loader; messages of another run are never taken for its own."""
        with self._lock:
            self._runs += 1
            return self._runs

    def channel(self, purpose: str, run: int = 0, members: Sequence[int] | None = None) -> Channel:
        """The stream of one of `PURPOSES`, or "stream k", in a run, between `members` or all; the same each time.

        ExchangeClosedError once it is closed: a thread that is late must not begin it anew, and wait in it.
        """
        with self._lock:
            if self._closed or (purpose, run) in self._over:
                raise ExchangeClosedError(f"this rank has closed the channel for {purpose} of run {run}")
            if (purpose, run) not in self._channels:
                number = PURPOSES[purpose] if purpose in PURPOSES else _FIRST_STREAM + int(purpose.split()[1])
                runs = (self._transport.max_tag + 1) >> _PURPOSE_BITS
                lane = self._transport.lane((run % runs) << _PURPOSE_BITS | number)
                self._channels[purpose, run] = Channel(
                    lane,
                    range(self.world_size) if members is None else members,
                    self.rank,
                    timeout_s=self.timeout_s,
                    traffic=self._traffic.setdefault(purpose, Traffic(self.world_size)),
                    chunk_bytes=self.chunk_bytes,
                    watch=self._watch,
                    place=Place(purpose, run),
                    ahead=purpose in _AHEAD,
                )
            return self._channels[purpose, run]

    def close_run(self, run: int, purposes: Collection[str] = tuple(PURPOSES)) -> None:
        """End the waits in channels of a run, from any thread; there will be no others in that run."""
        with self._lock:
            self._over.update(dict.fromkeys((purpose, run) for purpose in purposes))
            while len(self._over) > _RUNS_REMEMBERED * len(PURPOSES):
                del self._over[next(iter(self._over))]
        self.release_run(run, purposes)

    def release_run(self, run: int, purposes: Collection[str]) -> None:
        """Give channels back in which nothing is under way; who asks for one again gets it as if it were the same."""
        with self._lock:
            channels = [c for purpose in purposes if (c := self._channels.pop((purpose, run), None)) is not None]
        for channel in channels:
            channel.close()

    def bytes_sent(self) -> dict[str, list[int]]:
        """Payload bytes sent to each rank, by purpose; what a rank keeps is 0."""
        with self._lock:
            return {purpose: traffic.sent.tolist() for purpose, traffic in self._traffic.items()}

    def node_members(self, node_size: int) -> list[int]:
        """The ranks of this rank's node, where each has `node_size` ranks, one after the other."""
        first = self.rank // node_size * node_size
        return list(range(first, first + node_size))

    def cross_members(self, node_size: int) -> list[int]:
        """The ranks that have this rank's place in their nodes, one of each node."""
        return list(range(self.rank % node_size, self.world_size, node_size))

    def node_channel(self, purpose: str, run: int, node_size: int) -> Channel | NodeChannel:
        """The stream of vectors or gradients between the ranks of this rank's node, through shared memory where there
        is some. The first call for a node size finds that out: all ranks of the node make it."""
        members = self.node_members(node_size)
        channel = self.channel(purpose, run, members)
        if not self._nodes.known(node_size):
            self._nodes.find(self.channel("node_memory", members=members), self.backend)
            self.release_run(0, ["node_memory"])
        memory = self._nodes.memory(node_size)
        if memory is None:
            return channel
        with self._lock:
            bells = self._traffic.setdefault("node_bells", Traffic(self.world_size))
            apart = self._shared.setdefault(purpose, Traffic(self.world_size))
        return NodeChannel(memory, channel, bells=bells, traffic=(channel.traffic, apart))

    def bytes_shared(self) -> dict[str, list[int]]:
        """Of `bytes_sent`, those that went through shared memory."""
        with self._lock:
            return {purpose: traffic.sent.tolist() for purpose, traffic in self._shared.items()}

    def barrier(self) -> None:
        """Wait until all ranks have come."""
        agree(self.channel("control"), {}, "its arrival")

    def all_gather(self, array: npt.ArrayLike, what: str = "its array") -> list[npt.NDArray[Any]]:
        """The arrays of all ranks, in the order of ranks, the same on each: for metrics, also those that are no mean.

        All ranks call it, in the same order, each with numbers or truths (an array, a scalar, a tensor on the host) of
        one dtype and shape but for the first axis, which may be of any length, 0 among them. The arrays returned are
        the caller's own. ``sum(ranks.all_gather(x))`` adds in the order of ranks: the same bits on all of them, in
        every run, under each launcher.

        `what` is named by errors, and must be one on all ranks. TypeError for what is no array of numbers, on this rank
        alone; RankMismatchError, on all, where `what`, dtypes or shapes differ; RankTimeoutError or RankLostError for
        ranks that did not come, by their numbers.
        """
        return gather_arrays(self.channel("figures"), array, what)

    def end_all(self, error: BaseException) -> None:
        """Say what happened on this rank, and end the processes of all, which would wait for it in vain."""
        lines = [] if isinstance(error, SystemExit) else traceback.format_exception(error)
        lines.append(f"rank {self.rank}: {type(error).__name__}: {error}\n")
        sys.stderr.write("".join(lines))  # in one write: the ranks share the stream
        sys.stderr.flush()
        self._nodes.give_up()
        if self._watch is not None:
            self._watch.leave(f"has failed with {type(error).__name__}: {error}")
        self._transport.end_all()

    def close(self) -> None:
        """End all waits of this rank, and tell the others that it leaves. Again: nothing."""
        if self._watch is not None:
            self._watch.leave("has closed its communicator")
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()
        self._nodes.close(self.timeout_s)
        self._transport.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.world_size > 1 and not _is_success(error):
            self.end_all(error)
        self.close()

    def __repr__(self) -> str:
        return f"Communicator(rank {self.rank} of {self.world_size}, {self.backend})"


def connect(
    backend: Backend | Literal["auto"] = "auto",
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    chunk_bytes: int | None = DEFAULT_CHUNK_BYTES,
    shared_memory: bool = True,
) -> Communicator:
    """The communicator of this process. "auto": gloo under torchrun, MPI under mpirun, else a single process.

    "gloo" needs ``torch.distributed`` to be initialised, with any backend; "auto" initialises it (with gloo) where
    torchrun has set its environment and nobody has. RuntimeError tells what is not installed.
    """
    if backend == "auto":
        backend = _launched_backend()
    transport: Transport
    if backend == "none":
        transport = NoTransport()
    elif backend == "mpi":
        transport = MpiTransport()
    elif backend == "gloo":
        from headrace.indexer.exchange.gloo_transport import GlooTransport  # loads torch

        transport = GlooTransport(timeout_s)
    else:
        raise ValueError(f"backend={backend!r} is none of 'auto', 'none', 'mpi' and 'gloo'")
    return Communicator(transport, timeout_s=timeout_s, chunk_bytes=chunk_bytes, shared_memory=shared_memory)


def _is_success(error: BaseException) -> bool:
    """Whether it is ``sys.exit()`` or ``sys.exit(0)``."""
    return isinstance(error, SystemExit) and (error.code is None or (isinstance(error.code, int) and error.code == 0))


def _launched_backend() -> Backend:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return "gloo"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return "gloo"
    return "mpi" if launched_ranks() > 1 else "none"
