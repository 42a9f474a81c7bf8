"""Pure-Python twin of the native index: the same places, tickets, errors and snapshots, from dicts and lists.

Slow and short; what the native kernel is tested against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer.columns import CheckedColumn, count_groups
from headrace.indexer.core import CutArrays, GroupArrays, IndexCore
from headrace.indexer.dit import DIT
from headrace.indexer.hashing import mix64, shard_of
from headrace.indexer.indexed import ABSENT, CHUNK_ROWS, U32, U64, IndexTable, pack_location, unpack_location

Key = tuple[int, bool, int]
"""Table ordinal, missing flag, id (0 where missing)."""


class PyDIT(DIT):
    """`DIT` on the twin kernel. Not for use by several threads at once."""

    def _make_core(self) -> IndexCore:
        return PyIndex(self._tables, self._num_shards, self._owner_rank)


class PyShard:
    """Chunks of one shard as [group, rows] lists, in the order in which they were taken."""

    def __init__(self) -> None:
        self.chunks: list[list[int]] = []
        self.committed: list[int] = []

    def take(self, group: int) -> tuple[int, int]:
        """(k, offset) of the next free row of the group."""
        mine = [k for k, chunk in enumerate(self.chunks) if chunk[0] == group]
        if not mine or self.chunks[mine[-1]][1] == CHUNK_ROWS:
            self.chunks.append([group, 0])
            self.committed.append(0)
            mine.append(len(self.chunks) - 1)
        self.chunks[mine[-1]][1] += 1
        return mine[-1], self.chunks[mine[-1]][1] - 1

    def give_back(self, k: int) -> None:
        self.chunks[k][1] -= 1
        if self.chunks[k][1] == 0:
            self.chunks.pop()
            self.committed.pop()


class PyIndex:
    def __init__(self, tables: Sequence[IndexTable], num_shards: int, owner_rank: int) -> None:
        self.tables, self.num_shards, self.rank = tables, num_shards, owner_rank
        self.shards = [PyShard() for _ in range(num_shards)]
        self.locations: dict[Key, int] = {}
        self.pending: dict[int, list[Key]] = {}
        self.next_ticket, self.last_committed, self.closed = 0, -1, False

    def index(self, columns: Sequence[CheckedColumn]) -> tuple[list[GroupArrays], int]:
        self._check_open()
        groups = deduplicate_py(columns, self.tables)
        brought: list[Key] = []
        for _, unique_ids, missing, locations, is_new, tables, offsets in groups:
            shards = self._shards(unique_ids, missing, tables, offsets)
            for row, key in enumerate(_keys(unique_ids, missing, tables, offsets)):
                if key not in self.locations:
                    shard = int(shards[row])
                    k, offset = self.shards[shard].take(self.tables[key[0]].group)
                    self.locations[key] = pack_location(k * self.num_shards + shard, offset, rank=self.rank)
                    brought.append(key)
                    is_new[row] = True
                locations[row] = self.locations[key]
        ticket = self.next_ticket
        self.next_ticket += 1
        self.pending[ticket] = brought
        return groups, ticket

    def lookup(self, columns: Sequence[CheckedColumn]) -> list[GroupArrays]:
        self._check_open()
        groups = deduplicate_py(columns, self.tables)
        provisional = self._provisional()
        for _, unique_ids, missing, locations, _, tables, offsets in groups:
            for row, key in enumerate(_keys(unique_ids, missing, tables, offsets)):
                locations[row] = ABSENT if key in provisional else self.locations.get(key, ABSENT)
        return groups

    def commit(self, ticket: int) -> None:
        self._check_open()
        self._check_ticket(ticket, False)
        for done in [t for t in self.pending if t <= ticket]:
            for key in self.pending.pop(done):
                shard, k = self._place(self.locations[key])
                self.shards[shard].committed[k] += 1
        self.last_committed = ticket

    def undo_after(self, ticket: int | None) -> None:
        self._check_open()
        if ticket is not None:
            self._check_ticket(ticket, True)
        for undone in sorted(self.pending, reverse=True):
            if ticket is not None and undone <= ticket:
                break
            for key in reversed(self.pending.pop(undone)):
                shard, k = self._place(self.locations.pop(key))
                self.shards[shard].give_back(k)

    def open_tickets(self) -> int:
        self._check_open()
        return len(self.pending)

    def committed_rows(self) -> int:
        return len(self.locations) - self.provisional_rows()

    def provisional_rows(self) -> int:
        self._check_open()
        return sum(len(keys) for keys in self.pending.values())

    def nbytes(self) -> int:
        self._check_open()
        return 0

    def chunk_group(self, chunk: int) -> int | None:
        self._check_open()
        k, shard = divmod(chunk, self.num_shards)
        chunks = self.shards[shard].chunks
        return chunks[k][0] if k < len(chunks) else None

    def stats(self) -> dict[str, Any]:
        counts = [sum(rows for _, rows in shard.chunks) for shard in self.shards]
        zeros = ("capacity", "nbytes", "scratch_nbytes", "keys", "probe_lines", "longest_probe", "growths")
        return {
            "rows": self.committed_rows(),
            "provisional": self.provisional_rows(),
            "fullest_shard": max(counts),
            "longest_call_ms": 0.0,
            "lock_wait_ms": 0.0,
            **dict.fromkeys(zeros, 0),
        }

    def snapshot(self) -> CutArrays:
        self._check_open()
        provisional = self._provisional()
        rows = sorted((location, *key) for key, location in self.locations.items() if key not in provisional)
        locations, tables, missing, ids = zip(*rows, strict=True) if rows else ((), (), (), ())
        chunks = [
            [(group, done) for (group, _), done in zip(shard.chunks, shard.committed, strict=True) if done]
            for shard in self.shards
        ]
        return CutArrays(
            np.array([self.tables[t].uid for t in tables], np.uint32),
            np.array(missing, np.bool_),
            np.array(ids, np.uint64),
            np.array(locations, np.uint64),
            np.array([len(c) for c in chunks], np.int64),
            np.array([group for c in chunks for group, _ in c], np.uint32),
            np.array([done for c in chunks for _, done in c], np.uint32),
        )

    def restore(
        self,
        tables: U32,
        missing: npt.NDArray[np.uint8],
        ids: U64,
        locations: U64,
        chunk_counts: npt.NDArray[np.int64],
        chunk_groups: U32,
        chunk_rows: U32,
    ) -> None:
        self._check_open()
        if self.locations or self.pending:
            raise RuntimeError("restore needs an empty index: no rows, no uncommitted tickets")
        fresh: dict[Key, int] = {}
        for row, (table, flag, raw, location) in enumerate(zip(tables, missing, ids, locations, strict=True)):
            key, shard = (int(table), bool(flag), int(raw)), self._place(int(location))[0]
            hashes = mix64(self.tables[key[0]].uid, key[1], np.array([raw], np.uint64))
            if int(shard_of(hashes, self.num_shards)[0]) != shard:
                raise ValueError(f"snapshot row {row} lies in shard {shard}, where its key does not belong")
            if key in fresh:
                raise ValueError(f"snapshot row {row} repeats the key of another row")
            fresh[key] = int(location)
        chunks = zip(chunk_groups.tolist(), chunk_rows.tolist(), strict=True)
        self.shards = [PyShard() for _ in range(self.num_shards)]
        for shard_now, count in zip(self.shards, chunk_counts, strict=True):
            shard_now.chunks = [list(next(chunks)) for _ in range(count)]
            shard_now.committed = [rows for _, rows in shard_now.chunks]
        self.locations = fresh

    def close(self) -> None:
        self.closed = True
        self.locations.clear()

    def _provisional(self) -> set[Key]:
        return {key for keys in self.pending.values() for key in keys}

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("the index is closed")

    def _check_ticket(self, ticket: int, or_last_committed: bool) -> None:
        if ticket in self.pending or (or_last_committed and ticket == self.last_committed):
            return
        if ticket <= self.last_committed:
            raise ValueError(f"ticket {ticket} is no longer open; committed last: {self.last_committed}")
        undone = ticket < self.next_ticket
        raise ValueError(f"unknown ticket {ticket}: {'it was undone' if undone else 'this index never gave it out'}")

    def _place(self, location: int) -> tuple[int, int]:
        """(shard, k) of the location's chunk."""
        k, shard = divmod(unpack_location(location)[2], self.num_shards)
        return shard, k

    def _shards(
        self, ids: U64, missing: npt.NDArray[np.bool_], tables: tuple[int, ...], offsets: npt.NDArray[np.int64]
    ) -> U64:
        hashes = np.empty(len(ids), np.uint64)
        for table, start, end in zip(tables, offsets[:-1], offsets[1:], strict=True):
            uid, part = self.tables[table].uid, slice(start, end)
            hashes[part] = np.where(missing[part], mix64(uid, True, ids[part]), mix64(uid, False, ids[part]))
        return shard_of(hashes, self.num_shards)


def deduplicate_py(columns: Sequence[CheckedColumn], tables: Sequence[IndexTable]) -> list[GroupArrays]:
    """Twin of the native deduplication: unique rows by table, in order of first appearance."""
    return [
        _deduplicate_group([c for c in columns if tables[c.table].group == group])
        for group in range(count_groups(tables))
    ]


def _deduplicate_group(columns: Sequence[CheckedColumn]) -> GroupArrays:
    per_table: dict[int, dict[Key, int]] = {}
    keys = [list(_column_keys(column)) for column in columns]
    for column, column_keys in zip(columns, keys, strict=True):
        unique = per_table.setdefault(column.table, {})
        for key in column_keys:
            unique.setdefault(key, len(unique))
    sizes = [len(unique) for unique in per_table.values()]
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
    start_of = dict(zip(per_table, offsets.tolist(), strict=False))
    query = [start_of[key[0]] + per_table[key[0]][key] for column_keys in keys for key in column_keys]
    unique_keys = [key for unique in per_table.values() for key in unique]
    return (
        np.array(query, np.uint32),
        np.array([key[2] for key in unique_keys], np.uint64),
        np.array([key[1] for key in unique_keys], np.bool_),
        np.full(len(unique_keys), ABSENT),
        np.zeros(len(unique_keys), np.bool_),
        tuple(per_table),
        offsets,
    )


def _column_keys(column: CheckedColumn) -> Iterator[Key]:
    missing = np.zeros(len(column.values), np.uint8) if column.missing is None else column.missing
    for raw, flag in zip(column.values.tolist(), missing.tolist(), strict=True):
        yield column.table, bool(flag), 0 if flag else raw


def _keys(
    ids: U64, missing: npt.NDArray[np.bool_], tables: tuple[int, ...], offsets: npt.NDArray[np.int64]
) -> Iterator[Key]:
    for table, start, end in zip(tables, offsets[:-1], offsets[1:], strict=True):
        for row in range(start, end):
            yield table, bool(missing[row]), int(ids[row])
