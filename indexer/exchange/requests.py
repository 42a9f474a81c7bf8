"""One round of requests: each rank asks the owners for its unique rows of a step, and answers what it is asked.

A request is a header of one length (step, rows, what the rank has to say, keys of each table, a checksum) and the ids,
8 bytes each, table after table. Both travel in one message, which has room for as many ids as that rank asked that
owner for in the round before, and a thirty-second part more; the rest, if there is any, comes in a second one. So both
sides know its size beforehand, and nearly always one message is all. An answer is a status and some bits a row. All
ranks do round t before any does round t + 1; peers are visited around the ring.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.indexer._dit import mix64
from headrace.indexer.exchange.channel import Channel
from headrace.indexer.exchange.errors import RankFailedError
from headrace.indexer.exchange.routing import owners_of
from headrace.indexer.indexed import I64, U64, Bool, IndexedGroup, IndexTable
from headrace.indexer.packed_columns import PackedColumns

Level = Literal["all", "node", "cross"]

KEYS_LIMIT = 1 << 28
"""Most keys of one request."""

RUNNING, ENDED, FAILED = 0, 1, 2
"""What a header says of its rank: it has a batch, its source is at the end, or it failed and says how."""

_MAGIC = 0x68656164_72616365
_HEAD = 7  # magic, step, rows, status, keys, checksum, epoch of R
_TEXT_WORDS = 40


@dataclass(frozen=True)
class Wanted:
    """What a rank wants of one layout: int64 `order` lists positions of its unique rows, owner after owner, each
    owner's ascending; `counts` int64 [W] of each owner."""

    order: I64
    counts: I64


@dataclass(frozen=True)
class Header:
    """What rank `rank` said in a round."""

    rank: int
    rows: int
    status: int
    text: str
    counts: I64
    missing_at: I64


def key_hashes(group: IndexedGroup, tables: Sequence[IndexTable]) -> U64:
    """The hash, uint64 [U], of each unique row of a group."""
    hashes = np.empty(group.num_unique, np.uint64)
    lost = np.flatnonzero(group.missing)  # one a table at most
    for j, table in enumerate(group.tables):
        start, end = int(group.table_offsets[j]), int(group.table_offsets[j + 1])
        hashes[start:end] = mix64(tables[table].uid, False, group.unique_ids[start:end])
        here = lost[(start <= lost) & (lost < end)] if len(lost) else lost
        if len(here):
            hashes[here] = mix64(tables[table].uid, True, group.unique_ids[here])
    return hashes


def wanted_rows(hashes: U64, size: int, cold: I64 | None = None, *, node_size: int = 1, level: Level = "all") -> Wanted:
    """The unique rows with these hashes by owner, among `size` ranks; those at the positions `cold` alone, if given.

    Of two levels, "node": by the owner's place in its node of `node_size` ranks; "cross": by the owner's node.
    """
    owners = owners_of(hashes if cold is None else hashes[cold], size)
    if level != "all":
        owners = owners % node_size if level == "node" else owners // node_size
        size = node_size if level == "node" else size // node_size
    order = np.argsort(owners.astype(np.uint16), kind="stable")
    return Wanted(order if cold is None else cold[order], np.bincount(owners, minlength=size))


def tell_status(channel: Channel, step: int, rows: int, status: int, text: str) -> list[Header]:
    """What each rank says of `step`, without keys. RankFailedError for one that failed, ValueError for another step."""
    words = np.zeros(3 + _TEXT_WORDS, np.int64)
    words[:3] = step, rows, status
    _put_text(words[3:], text)
    none = np.empty(0, np.int64)
    told = channel.all_gather(words, f"its status at step {step}")
    headers = [Header(rank, int(w[1]), int(w[2]), _text(w[3:]), none, none) for rank, w in enumerate(told)]
    for header in headers:
        if int(told[header.rank, 0]) != step:
            raise ValueError(f"rank {header.rank} is at step {int(told[header.rank, 0])}, this rank at step {step}")
        if header.status == FAILED:
            raise RankFailedError(header.rank, header.text)
    return headers


class RequestRound:
    """The rounds of one run on one rank; see the module. `table_order` lists the tables group after group."""

    def __init__(self, requests: Channel, replies: Channel, tables: Sequence[IndexTable], table_order: I64) -> None:
        self._requests, self._replies = requests, replies
        self._table_order = table_order
        self._groups = np.array([tables[t].group for t in table_order], np.int64)
        self._num_groups = max((t.group for t in tables), default=-1) + 1
        self.rank, self.size = requests.rank, requests.size
        self._room_for, self._room_of = [0] * self.size, [0] * self.size  # ids in the next message to and of each rank

    def ask(
        self,
        step: int,
        rows: int,
        groups: Sequence[IndexedGroup],
        wanted: Sequence[Wanted],
        *,
        status: int,
        text: str,
        epoch: int = 0,
    ) -> list[tuple[Header, U64]]:
        """Send what this rank wants of step `step`, and give what each rank wants of this one: its header and ids.

        RankFailedError when a rank says that it failed, ValueError for a header that is damaged or of another step.
        """
        counts, missing_at, ids = self._by_owner(groups, wanted)
        words = self._words()
        sent = []
        for owner, part in enumerate(ids):
            message = np.zeros(words + self._room_for[owner], np.int64)
            message[:words] = _header(step, rows, status, counts[owner], missing_at[owner], text, words, epoch)
            first = part[: self._room_for[owner]]
            message[words : words + len(first)] = first.view(np.int64)
            sent.append(message)
        came = [np.empty(words + room, np.int64) for room in self._room_of]
        self._requests.all_to_all(sent, came, f"the request for step {step}")
        headers = [self._checked(message[:words], r, step, epoch) for r, message in enumerate(came)]
        for header in headers:
            if header.status == FAILED:
                raise RankFailedError(header.rank, header.text)
        asked = self._with_rest(ids, came, [int(header.counts.sum()) for header in headers], step)
        return list(zip(headers, asked, strict=True))

    def _with_rest(self, ids: list[U64], came: list[I64], keys: list[int], step: int) -> list[U64]:
        """All ids of each rank: those of its first message, `came`, and the rest of its `keys`, which are sent now."""
        rest = [np.empty(max(0, n - room), np.uint64) for n, room in zip(keys, self._room_of, strict=True)]
        self._requests.all_to_all(
            [part[room:] for part, room in zip(ids, self._room_for, strict=True)], rest, f"the ids of step {step}"
        )
        words = self._words()
        asked = []
        for message, n, more in zip(came, keys, rest, strict=True):
            first = message[words : words + n].view(np.uint64)
            asked.append(np.concatenate([first, more]) if len(more) else first)
        self._room_for = [_room(len(part)) for part in ids]
        self._room_of = [_room(n) for n in keys]
        return asked

    def columns(self, asked: Sequence[tuple[Header, U64]]) -> PackedColumns:
        """The keys that the ranks asked for as columns for the index: rank after rank, table after table."""
        headers = [header for header, _ in asked]
        return PackedColumns(
            self._table_order,
            [ids for _, ids in asked],
            np.stack([header.counts for header in headers]),
            np.stack([header.missing_at for header in headers]),
        )

    def counts_by_group(self, asked: Sequence[tuple[Header, U64]]) -> I64:
        """int64 [groups, W]: how many rows of each layout each rank asks for."""
        out = np.zeros((self._num_groups, self.size), np.int64)
        for header, _ in asked:
            np.add.at(out[:, header.rank], self._groups, header.counts)
        return out

    def answer(self, step: int, bits: Sequence[Bool], sizes: Sequence[int], *, error: str = "") -> list[Bool]:
        """Send `bits[r]` to each rank r that asked, and give those of each owner o, of which `sizes[o]` are expected.

        RankFailedError when an owner says that it failed; with `error` this rank says so.
        """
        head = np.zeros(1 + _TEXT_WORDS, np.int64)
        head[0] = FAILED if error else RUNNING
        _put_text(head[1:], error)
        sent = [np.concatenate([head.view(np.uint8), np.packbits(part)]) for part in bits]
        got = [np.empty(head.nbytes + -(-size // 8), np.uint8) for size in sizes]
        self._replies.all_to_all(sent, got, f"the answer for step {step}")
        for owner, answer in enumerate(got):
            words = answer[: head.nbytes].view(np.int64)
            if words[0] != RUNNING and owner != self.rank:
                raise RankFailedError(owner, _text(words[1:]))
        pairs = zip(got, sizes, strict=True)
        return [np.unpackbits(answer[head.nbytes :], count=size).view(np.bool_) for answer, size in pairs]

    def _by_owner(self, groups: Sequence[IndexedGroup], wanted: Sequence[Wanted]) -> tuple[I64, I64, list[U64]]:
        """int64 [W, T] keys of each table, int64 [W, T] which is the missing value (or -1), ids of each owner."""
        tables = len(self._table_order)
        counts, missing_at = np.zeros((self.size, tables), np.int64), np.full((self.size, tables), -1, np.int64)
        parts: list[list[U64]] = [[] for _ in range(self.size)]
        for g, (group, one) in enumerate(zip(groups, wanted, strict=True)):
            columns = np.flatnonzero(self._groups == g)
            if [int(self._table_order[c]) for c in columns] != list(group.tables):
                raise ValueError(f"group {g}: tables {group.tables} of a batch, {self._table_order[columns]} expected")
            column_of = np.repeat(columns, np.diff(group.table_offsets))[one.order]
            owner_of = np.repeat(np.arange(self.size), one.counts)
            part_of = owner_of * tables + column_of  # ascending: each owner's rows are table after table
            sizes = np.bincount(part_of, minlength=self.size * tables)
            counts += sizes.reshape(counts.shape)
            starts = np.cumsum(sizes) - sizes
            at = np.flatnonzero(group.missing[one.order])
            missing_at.reshape(-1)[part_of[at]] = at - starts[part_of[at]]
            ids = group.unique_ids[one.order]
            for owner, part in enumerate(np.split(ids, np.cumsum(one.counts)[:-1])):
                parts[owner].append(part)
        return counts, missing_at, [np.concatenate([np.empty(0, np.uint64), *part]) for part in parts]

    def _words(self) -> int:
        return _HEAD + 2 * len(self._table_order) + _TEXT_WORDS

    def _checked(self, head: I64, rank: int, step: int, epoch: int) -> Header:
        """The header as data; ValueError before anything is allocated by it (P28)."""
        tables = len(self._table_order)
        counts, missing_at = head[_HEAD : _HEAD + tables], head[_HEAD + tables : _HEAD + 2 * tables]
        if head[0] != _MAGIC or head[5] != _checksum(head):
            raise ValueError(f"rank {rank} sent a damaged request for step {step}")
        if head[1] != step:
            raise ValueError(f"rank {rank} is at step {int(head[1])}, this rank at step {step}")
        if head[6] != epoch:
            raise ValueError(f"rank {rank} classified step {step} by epoch {int(head[6])} of R, this rank by {epoch}")
        keys = int(head[4])
        fits = (counts >= 0).all() and (missing_at < np.maximum(counts, 1)).all() and keys == int(counts.sum())
        if not fits or not 0 <= keys <= KEYS_LIMIT or head[2] < 0 or head[3] not in (RUNNING, ENDED, FAILED):
            raise ValueError(f"rank {rank} asks for {keys} rows of step {step}; a request has at most {KEYS_LIMIT}")
        text = _text(head[_HEAD + 2 * tables :])
        return Header(rank, int(head[2]), int(head[3]), text, counts.copy(), missing_at.copy())


def _room(keys: int) -> int:
    """Ids that the next message between two ranks has room for, when the last one was of `keys`."""
    return keys + keys // 32


def _header(step: int, rows: int, status: int, counts: I64, missing_at: I64, text: str, words: int, epoch: int) -> I64:
    head = np.zeros(words, np.int64)
    head[:5] = _MAGIC, step, rows, status, counts.sum()
    head[6] = epoch
    tables = len(counts)
    head[_HEAD : _HEAD + tables] = counts
    head[_HEAD + tables : _HEAD + 2 * tables] = missing_at
    _put_text(head[_HEAD + 2 * tables :], text)
    head[5] = _checksum(head)
    return head


def _checksum(head: I64) -> int:
    return zlib.crc32(head[6:].tobytes(), zlib.crc32(head[:5].tobytes()))


def _put_text(words: I64, text: str) -> None:
    data = text.encode()[: words.nbytes]
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)


def _text(words: I64) -> str:
    return words.tobytes().rstrip(b"\0").decode(errors="replace")
