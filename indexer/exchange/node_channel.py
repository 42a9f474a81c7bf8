"""A channel between ranks of a node whose arrays travel through shared memory; the transport carries a bell for each.

So waits, their limit, and the names of those who are missing are the transport's, as in every other channel.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.indexer.exchange.channel import F32, Array, Channel, Posted, Traffic, bytes_of
from headrace.indexer.exchange.errors import RankLostError
from headrace.indexer.exchange.node_memory import BELL_WORDS, Bell, NodeMemory, share
from headrace.indexer.exchange.shared_block import SharedMemoryError
from headrace.indexer.exchange.transport import U8

_CLOSE_TIMEOUT_S = 30.0
"""How long a rank that closes waits for the others to see the memory that they were told of."""

_EXIT_TIMEOUT_S = 5.0
"""The same where nobody has closed it."""

_NOT_WANTED = "it was started with shared_memory=False"


class NodeChannel:
    """As `channel`, in which the bells ring. They are counted in `bells`, and the arrays in each of `traffic`."""

    def __init__(self, memory: NodeMemory, channel: Channel, *, bells: Traffic, traffic: Sequence[Traffic]) -> None:
        self.rank, self.size = channel.rank, channel.size
        self._memory, self._channel, self._bells, self._traffic = memory, channel, bells, traffic

    def room(self, peer: int, shape: tuple[int, int]) -> F32:
        """An array float32 to be written, and posted to `peer`: it lies where the peer reads it."""
        size = shape[0] * shape[1] * 4
        if peer == self.rank or not size:
            return np.empty(shape, np.float32)
        return self._memory.outboxes[peer].room(size).view(np.float32).reshape(shape)

    def post(self, sends: Mapping[int, Array], receives: Mapping[int, Array], what: str = "a message") -> Taking:
        """Begin to send and to fill C-contiguous arrays, by peer. What :meth:`room` gave is not copied."""
        coming = self._of_others(receives)
        rung = {peer: np.empty(BELL_WORDS, np.int64) for peer in coming}
        bells: dict[int, Bell] = {}
        for peer, data in self._of_others(sends).items():
            bells[peer] = self._memory.outboxes[peer].publish(data)
            for traffic in self._traffic:
                traffic.sent[self._channel.members[peer]] += len(data)
        for peer, data in coming.items():
            for traffic in self._traffic:
                traffic.received[self._channel.members[peer]] += len(data)
        posted = self._channel.post(bells, rung, what, traffic=self._bells)
        return Taking(self._memory, self._channel, posted, rung, coming, what)

    def _of_others(self, arrays: Mapping[int, Array]) -> dict[int, U8]:
        return {peer: bytes_of(array) for peer, array in arrays.items() if peer != self.rank and array.size}


class Taking:
    """Messages under way, as :class:`Posted`; they are copied out when they are waited for."""

    def __init__(
        self,
        memory: NodeMemory,
        channel: Channel,
        posted: Posted,
        rung: Mapping[int, Bell],
        into: Mapping[int, U8],
        what: str,
    ) -> None:
        self._memory, self._channel, self._what = memory, channel, what
        self._posted, self._rung, self._into = posted, rung, into

    def wait(self) -> None:
        """RankTimeoutError or RankLostError, which name the ranks. Again: nothing."""
        self._posted.wait()
        into, self._into = self._into, {}
        here = self._channel.members[self._channel.rank]
        for peer, data in into.items():
            with self._channel.lost(here, self._what):
                try:
                    self._memory.inboxes[peer].take(self._rung[peer], data)
                except SharedMemoryError as error:  # it rang, and ended
                    why = str(error).replace(": ", ", ")
                    raise RankLostError(here, [self._channel.members[peer]], self._what, why) from error


class SharedNodes:
    """The memory that this process shares with the ranks of its node, by how many these are. One caller at a time."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._found: dict[int, NodeMemory | None] = {}
        self._ended = False

    def known(self, node_size: int) -> bool:
        """Whether :meth:`find` was called for nodes of this size."""
        return node_size == 1 or node_size in self._found

    def memory(self, node_size: int) -> NodeMemory | None:
        """What was found; None: there is none."""
        return self._found.get(node_size)

    def find(self, channel: Channel, backend: str) -> None:
        """Agree with the other ranks of the channel, all of which call it; a warning says where there is no memory."""
        memory, why = share(channel, refused=None if self._wanted else _NOT_WANTED)
        if memory is None and _NOT_WANTED not in why:
            warnings.warn(
                f"ranks {channel.members[0]} to {channel.members[-1]} exchange through {backend}, not through shared "
                f"memory: {why} (connect(shared_memory=False) does so without a warning)",
                RuntimeWarning,
                stacklevel=4,
            )
        if memory is not None and not any(self._found.values()):
            atexit.register(self._close_at_exit)
        self._found[channel.size] = memory

    def give_up(self) -> None:
        """This rank has failed: it waits for no other when it closes."""
        self._ended = True

    def close(self, limit_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Let the others see what they were told of, `limit_s` at most. Again: nothing."""
        ended, self._ended = self._ended, True
        if not ended:
            for memory in self._found.values():
                if memory is not None:
                    memory.wait_until_seen(min(limit_s, _CLOSE_TIMEOUT_S))
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self.close(_EXIT_TIMEOUT_S)
