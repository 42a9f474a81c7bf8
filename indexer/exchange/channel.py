"""One stream of messages between all ranks: every wait is bounded and names who is late, every payload byte counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.indexer.exchange.activity import NOWHERE, Begun, Numbers, Place
from headrace.indexer.exchange.errors import (
    ExchangeClosedError,
    RankLeftError,
    RankLostError,
    RankMismatchError,
    RankStandstillError,
    RankTimeoutError,
)
from headrace.indexer.exchange.sole_use import SoleUse
from headrace.indexer.exchange.transport import U8, Lane, Waiting
from headrace.indexer.exchange.watch import Watch

Array = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

MESSAGE_LIMIT = 1 << 34
"""Most bytes of an array whose size another rank announces."""


def turns(rank: int, size: int, *, ring: bool = True) -> list[tuple[int, int]]:
    """(receiver, sender) of each turn: around the ring, each turn a permutation; or from rank 0 up, for all."""
    if ring:
        return [((rank + k) % size, (rank - k) % size) for k in range(1, size)]
    return [(peer, peer) for peer in range(size) if peer != rank]


class Traffic:
    """Payload bytes of one kind of messages, int64 [world size] to and from each peer; own rows are no traffic."""

    def __init__(self, size: int) -> None:
        self.sent: I64 = np.zeros(size, np.int64)
        self.received: I64 = np.zeros(size, np.int64)


class UnderWay(Protocol):
    """Messages of :class:`Channel` or another way."""

    def wait(self) -> None:
        """Until the arrays to fill are whole."""


class Posts(Protocol):
    """What vectors and gradients travel over: a :class:`Channel`, or shared memory."""

    rank: int
    size: int

    def room(self, peer: int, shape: tuple[int, int]) -> F32:
        """An array float32 to be written, and posted to `peer` with this shape."""

    def post(self, sends: Mapping[int, Array], receives: Mapping[int, Array], what: str = ...) -> UnderWay:
        """As :meth:`Channel.post`."""


class Posted:
    """Messages under way. Their arrays must stay as they are until `wait`; an array to fill is whole after it."""

    def __init__(
        self, channel: Channel, waiting: Waiting, what: str, numbers: dict[int, Numbers], use: SoleUse | None
    ) -> None:
        self._channel, self._waiting, self._what, self._numbers = channel, waiting, what, numbers
        self._use = use  # begun; it ends when this is waited for, or given up

    def wait(self) -> None:
        """RankTimeoutError or RankLostError, which name the ranks. Again: nothing."""
        waiting, self._waiting = self._waiting, ()
        try:
            self._channel._wait(waiting, self._what, self._numbers)
        finally:
            self._end_use()

    def _end_use(self) -> None:
        use, self._use = self._use, None
        if use is not None:
            use.end()

    __del__ = _end_use


class Channel:
    """Messages of one purpose and run between all ranks; both sides know sizes before anything is sent.

    The ranks are those of `members`, which may be some of all; `rank` and peers are positions among them. Traffic and
    errors name them by their numbers among all. Nothing is sent for an empty array. All ranks use a channel in the same
    order. `post` and all that is made of it by one thread at a time, else RuntimeError before anything is sent; several
    calls that belong together are made within ``channel.sole_use(what)``. Where loops share a channel (run 0) it is a
    thread's from `post` to `wait`. `close` by any.
    """

    def __init__(
        self,
        lane: Lane,
        members: Sequence[int],
        rank: int,
        *,
        timeout_s: float,
        traffic: Traffic,
        chunk_bytes: int | None,
        watch: Watch | None = None,
        place: Place = NOWHERE,
        ahead: bool = False,
    ) -> None:
        self.rank, self.size, self.timeout_s = list(members).index(rank), len(members), timeout_s
        self.members = tuple(members)
        self.traffic = traffic
        self._lane = lane
        self._chunk_bytes = chunk_bytes
        self._watch, self._place, self._ahead = watch, place, ahead
        self._begun = Begun() if watch is None else watch.activity.begun_at(place)
        self._closed = threading.Event()
        self.sole_use = SoleUse(rank, place.purpose)

    def room(self, peer: int, shape: tuple[int, int]) -> F32:
        """An array float32 to be written, and posted."""
        return np.empty(shape, np.float32)

    def post(
        self,
        sends: Mapping[int, Array],
        receives: Mapping[int, Array],
        what: str = "a message",
        *,
        ring: bool = True,
        traffic: Traffic | None = None,
    ) -> Posted:
        """Begin to send and to fill C-contiguous arrays, by peer; peers are visited around the ring. Their bytes are
        counted in `traffic`, if it is given, instead of the channel's own."""
        with self.sole_use(what):
            order = turns(self.rank, self.size, ring=ring)
            return self._post(sends, receives, what, order, self.traffic if traffic is None else traffic)

    def _post(
        self,
        sends: Mapping[int, Array],
        receives: Mapping[int, Array],
        what: str,
        order: list[tuple[int, int]],
        counts: Traffic,
    ) -> Posted:
        waiting: list[tuple[int, Any]] = []
        for _, sender in order:
            if sender in receives and receives[sender].size:
                data, peer = bytes_of(receives[sender]), self.members[sender]
                counts.received[peer] += len(data)
                self._begun.received[peer] += 1
                waiting += [(peer, self._lane.receive(part, peer)) for part in self._chunks(data)]
        for to, _ in order:
            if to in sends and sends[to].size:
                data, peer = bytes_of(sends[to]), self.members[to]
                counts.sent[peer] += len(data)
                self._begun.sent[peer] += 1
                waiting += [(peer, self._lane.send(part, peer)) for part in self._chunks(data)]
        numbers = {peer: self._begun.numbers(peer) for peer, _ in waiting} if self._watch is not None else {}
        use = self.sole_use if self._place.run == 0 else None  # loops share those of run 0
        if use is not None:
            use.begin(what)
        return Posted(self, waiting, what, numbers, use)

    def swap(self, sent: Array, to: int, received: Array, sender: int, what: str = "a message") -> None:
        """Send one array and fill another."""
        self.post({to: np.ascontiguousarray(sent)}, {sender: received}, what).wait()

    def all_to_all(
        self, sends: Sequence[Array], receives: Sequence[Array], what: str = "a message", *, ring: bool = True
    ) -> None:
        """Send ``sends[r]`` to rank r and fill ``receives[r]`` from it; one's own is copied."""
        with self.sole_use(what):
            receives[self.rank][...] = sends[self.rank]
            self.post(dict(enumerate(sends)), dict(enumerate(receives)), what, ring=ring).wait()

    def all_gather(self, row: Array, what: str = "its figures") -> Array:
        """[size, n]: the rows of all ranks, of one length; no rank is past it before all have come."""
        rows = np.zeros((self.size, len(row)), row.dtype)
        self.all_to_all([np.ascontiguousarray(row)] * self.size, list(rows), what)
        return rows

    def all_gather_bytes(self, data: bytes, what: str = "its figures", *, limit: int = MESSAGE_LIMIT) -> list[bytes]:
        """The bytes of all ranks; sizes are told first. ValueError for one above `limit`, before memory is taken."""
        with self.sole_use(what):
            sizes = self.all_gather(np.array([len(data)], np.int64), what)[:, 0]
            parts = [np.empty(check_size(int(n), limit, r), np.uint8) for r, n in enumerate(sizes)]
            self.all_to_all([np.frombuffer(data, np.uint8)] * self.size, parts, what)
        return [part.tobytes() for part in parts]

    def all_reduce(self, values: Array, what: str = "its share of a sum") -> Array:
        """The sum of all ranks' arrays, added in the order of the ranks: the same bits on every rank and in every run.

        Each rank adds one segment of all, then all get all segments: 2 (W - 1) / W times the array travels.
        """
        flat = np.ascontiguousarray(values).reshape(-1)
        ends = np.arange(self.size + 1) * len(flat) // self.size
        parts = [flat[a:b] for a, b in pairwise(ends)]
        mine = np.empty((self.size, len(parts[self.rank])), flat.dtype)
        with self.sole_use(what):
            self.all_to_all(parts, list(mine), what)
            total = mine[0].copy()
            for one in mine[1:]:
                total += one
            result = np.empty_like(flat)
            self.all_to_all([total] * self.size, [result[a:b] for a, b in pairwise(ends)], what)
        return result.reshape(values.shape)

    def close(self) -> None:
        """End the waits of this rank with ExchangeClosedError, those to come as well."""
        self._closed.set()
        self._lane.interrupt()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def _chunks(self, data: U8) -> list[U8]:
        size = self._chunk_bytes or len(data)
        if len(data) <= size:
            return [data]
        return [data[start : start + size] for start in range(0, len(data), size)]

    def _wait(self, waiting: Waiting, what: str, numbers: dict[int, Numbers]) -> None:
        if not waiting:
            return
        here, watch = self.members[self.rank], self._watch
        if watch is None:
            with self.lost(here, what):
                late = self._lane.wait(waiting, self.timeout_s)
            if late:
                raise RankTimeoutError(here, late, self.timeout_s, what)
            return
        with watch.activity.waits(what, self._place, numbers, ahead=self._ahead) as mine:
            with self.lost(here, what):
                late, why = watch.wait(self._lane, waiting, self.timeout_s, mine)
            if not late:
                return
            if why == "left":
                raise RankLeftError(here, watch.farewell(late), what)
            others = f" ({watch.activity.last}){watch.words(late, mine.since)}"
            if why == "standstill":
                raise RankStandstillError(here, late, what, others)
            raise RankTimeoutError(here, late, self.timeout_s, what, others)

    @contextmanager
    def lost(self, here: int, what: str) -> Iterator[None]:
        """What a backend raises while this rank waits, in the words of :mod:`headrace.indexer.exchange.errors`."""
        try:
            yield
        except RankLostError as error:
            said = {} if self._watch is None else self._watch.farewell(error.ranks)
            if said:
                raise RankLeftError(here, said, what) from error
            raise RankLostError(here, error.ranks, what, str(error).rpartition(": ")[2]) from None
        except ExchangeClosedError:
            raise
        except RuntimeError as error:
            raise RankMismatchError(
                f"rank {here} got another message than {what}: the ranks do not make the same calls for the same "
                f"batches ({str(error).strip().splitlines()[-1]})"
            ) from error


def check_size(size: int, limit: int, sender: int) -> int:
    """The size that `sender` announced. ValueError outside [0, limit]."""
    if not 0 <= size <= limit:
        raise ValueError(f"rank {sender} announces {size} bytes; a message has at most {limit}")
    return size


def bytes_of(array: Array) -> U8:
    if not array.flags.c_contiguous:
        raise ValueError("an array that is sent or filled must be C-contiguous")
    return array.reshape(-1).view(np.uint8)
