"""Pure-Python twin of the native index: the same places, tickets, errors and snapshots, from dicts and lists.

Slow and short; what the native kernel is tested against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer.columns import CheckedColumn, count_groups
from headrace.indexer.core import GroupArrays, IndexCore, RowArrays
from headrace.indexer.dit import DIT
from headrace.indexer.hashing import mix64, route_bucket, shard_of
from headrace.indexer.indexed import ABSENT, CHUNK_ROWS, U32, U64, IndexTable, pack_location, unpack_location
from headrace.indexer.packed_columns import Checked, CheckedPacked

Key = tuple[int, bool, int]
"""Table ordinal, missing flag, id (0 where missing)."""

COMMIT_IN_ORDER = (
    ". Its rows are permanent, and this call has counted nothing: commit each batch once, in the order of the tickets, "
    "from one thread where several index"
)


class PyDIT(DIT):
    """`DIT` on the twin kernel. Not for use by several threads at once."""

    def _make_core(self) -> IndexCore:
        return PyIndex(self._tables, self._num_shards, self._owner_rank, self._half_life or 0.0)


class PyShard:
    """Chunks of one shard as [group, extent] lists, in the order in which they were taken, and the holes in them."""

    def __init__(self) -> None:
        self.chunks: list[list[int]] = []
        self.committed: list[int] = []
        self.free: set[tuple[int, int]] = set()
        self.retaken: set[tuple[int, int]] = set()  # holes that provisional rows have taken

    def take(self, group: int) -> tuple[int, int]:
        """(k, offset) of the lowest free place of the group, or of its next one."""
        free = [place for place in self.free if self.chunks[place[0]][0] == group]
        if free:
            self.free.remove(min(free))
            self.retaken.add(min(free))
            return min(free)
        mine = [k for k, chunk in enumerate(self.chunks) if chunk[0] == group]
        if not mine or self.chunks[mine[-1]][1] == CHUNK_ROWS:
            self.chunks.append([group, 0])
            self.committed.append(0)
            mine.append(len(self.chunks) - 1)
        self.chunks[mine[-1]][1] += 1
        return mine[-1], self.chunks[mine[-1]][1] - 1

    def give_back(self, k: int, offset: int) -> None:
        if (k, offset) in self.retaken:
            self.retaken.remove((k, offset))
            self.free.add((k, offset))
            return
        self.chunks[k][1] -= 1
        if self.chunks[k][1] == 0:
            self.chunks.pop()
            self.committed.pop()

    def commit(self, k: int, offset: int) -> None:
        if (k, offset) in self.retaken:
            self.retaken.remove((k, offset))
        else:
            self.committed[k] += 1


class PyUseCounts:
    """Uses as the native ones are stored: weights that rise with time, divided by 2^32 every 32 half-lives."""

    def __init__(self, half_life: float) -> None:
        self.half_life, self.batches = half_life, 0
        self.stored: dict[int, tuple[float, int]] = {}  # by location: weight, divisions when it was written

    def add(self, locations: Sequence[U64]) -> None:
        self.batches += 1
        for location in np.concatenate([*locations, np.empty(0, np.uint64)]).tolist():
            if location != ABSENT:
                self.stored[location] = (float(np.float32(self.weight(location) + self._scale())), self._divisions())

    def weight(self, location: int) -> float:
        weight, divisions = self.stored.get(location, (0.0, self._divisions()))
        return float(np.float32(weight * 2.0 ** (-32 * (self._divisions() - divisions))))

    def uses(self, location: int) -> float:
        return float(np.float32(self.weight(location) / self._scale()))

    def _divisions(self) -> int:
        return int(self.batches / self.half_life / 32) if self.half_life else 0

    def _scale(self) -> float:
        exponent = self.batches / self.half_life - 32 * self._divisions() if self.half_life else 0
        return float(np.float32(2.0**exponent))


class PyCut:
    def __init__(self, rows: list[list[tuple[int, Key]]], chunks: list[Any], index: PyIndex) -> None:
        self.rows, self._chunks, self.index = rows, chunks, index
        self.counted_batches = index.counts.batches
        self.weights = [[index.counts.weight(location) for location, _ in shard] for shard in rows]

    def num_rows(self, shard: int) -> int:
        return len(self.rows[shard])

    def chunks(self, shard: int) -> tuple[list[int], list[int]]:
        return [group for group, _ in self._chunks[shard]], [extent for _, extent in self._chunks[shard]]

    def shard_rows(self, shard: int) -> RowArrays:
        weights = np.array(self.weights[shard], np.float32) if self.counted_batches else None
        return self.index.row_arrays(self.rows[shard])._replace(weights=weights)

    def close(self) -> None: ...


class PyIndex:
    def __init__(self, tables: Sequence[IndexTable], num_shards: int, owner_rank: int, half_life: float) -> None:
        self.tables, self.num_shards, self.rank = tables, num_shards, owner_rank
        self.counts = PyUseCounts(half_life)
        self.restored: list[tuple[PyShard, dict[Key, int]]] = []
        self.shards = [PyShard() for _ in range(num_shards)]
        self.locations: dict[Key, int] = {}
        self.pending: dict[int, list[Key]] = {}
        self.fresh: list[Key] = []  # since the last commit
        self.next_ticket, self.last_committed, self.closed = 0, -1, False

    def index(self, columns: Checked) -> tuple[list[GroupArrays], int]:
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
                    self.fresh.append(key)
                    is_new[row] = True
                locations[row] = self.locations[key]
        ticket = self.next_ticket
        self.next_ticket += 1
        self.pending[ticket] = brought
        return groups, ticket

    def lookup(self, columns: Checked) -> list[GroupArrays]:
        self._check_open()
        groups = deduplicate_py(columns, self.tables)
        provisional = self._provisional()
        for _, unique_ids, missing, locations, _, tables, offsets in groups:
            for row, key in enumerate(_keys(unique_ids, missing, tables, offsets)):
                locations[row] = ABSENT if key in provisional else self.locations.get(key, ABSENT)
        return groups

    def remove(self, columns: Checked) -> list[GroupArrays]:
        self._check_open()
        if self.pending:
            raise RuntimeError(f"{len(self.pending)} tickets are open")
        groups = self.lookup(columns)
        for _, unique_ids, missing, _, _, tables, offsets in groups:
            for key in _keys(unique_ids, missing, tables, offsets):
                if key in self.locations:
                    location = self.locations.pop(key)
                    shard, k, offset = self._place(location)
                    self.shards[shard].free.add((k, offset))
                    self.counts.stored.pop(location, None)
        return groups

    def commit(self, ticket: int, used: Sequence[U64]) -> None:
        self._check_open()
        self._check_ticket(ticket, False)
        for locations in used:
            self._check_locations(locations)
        for key in self.fresh:
            self.counts.stored.pop(self.locations.get(key, -1), None)  # of what was there before
        self.fresh = []
        for done in [t for t in self.pending if t <= ticket]:
            for key in self.pending.pop(done):
                shard, k, offset = self._place(self.locations[key])
                self.shards[shard].commit(k, offset)
        if used:
            self.counts.add(used)
        self.last_committed = ticket

    def uses(self, locations: U64) -> npt.NDArray[np.float32]:
        self._check_open()
        self._check_locations(locations)
        return np.array([self.counts.uses(location) for location in locations.tolist()], np.float32)

    def undo_after(self, ticket: int | None) -> None:
        self._check_open()
        if ticket is not None:
            self._check_ticket(ticket, True)
        for undone in sorted(self.pending, reverse=True):
            if ticket is not None and undone <= ticket:
                break
            for key in reversed(self.pending.pop(undone)):
                shard, k, offset = self._place(self.locations.pop(key))
                self.shards[shard].give_back(k, offset)

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
        counts = [sum(rows for _, rows in shard.chunks) - len(shard.free) for shard in self.shards]
        zeros = ["capacity", "nbytes", "counts_nbytes", "scratch_nbytes", "keys", "probe_lines"]
        zeros += ["longest_probe", "growths"]
        return {
            "rows": self.committed_rows(),
            "provisional": self.provisional_rows(),
            "free_places": sum(len(shard.free) for shard in self.shards),
            "fullest_shard": max(counts),
            "longest_call_ms": 0.0,
            "lock_wait_ms": 0.0,
            **dict.fromkeys(zeros, 0),
        }

    def open_cut(self) -> PyCut:
        self._check_open()
        provisional = self._provisional()
        rows: list[list[tuple[int, Key]]] = [[] for _ in self.shards]
        for key, location in self.locations.items():
            if key not in provisional:
                rows[self._place(location)[0]].append((location, key))
        chunks = [
            [(group, done) for (group, _), done in zip(shard.chunks, shard.committed, strict=True) if done]
            for shard in self.shards
        ]
        return PyCut([sorted(shard) for shard in rows], chunks, self)

    def bucket_rows(self, first: int, last: int) -> RowArrays:
        cut = self.open_cut()
        every = self.row_arrays([row for shard in cut.rows for row in shard])
        order = np.lexsort((every.missing, every.tables, every.hashes))
        buckets = route_bucket(every.hashes[order])
        order = order[(buckets >= first) & (buckets < last)]
        parts = every.tables[order], every.missing[order], every.ids[order], every.locations[order]
        return RowArrays(*parts, every.hashes[order], None)

    def row_arrays(self, rows: list[tuple[int, Key]]) -> RowArrays:
        tables = np.array([key[0] for _, key in rows], np.uint32)
        missing = np.array([key[1] for _, key in rows], np.bool_)
        ids = np.array([key[2] for _, key in rows], np.uint64)
        hashes = [mix64(self.tables[t].uid, m, np.array([i], np.uint64))[0] for _, (t, m, i) in rows]
        locations = np.array([location for location, _ in rows], np.uint64)
        return RowArrays(tables, missing, ids, locations, np.array(hashes, np.uint64), None)

    def restore_shard(
        self,
        shard: int,
        groups: list[int],
        extents: list[int],
        tables: U32,
        missing: npt.NDArray[np.uint8],
        ids: U64,
        locations: U64,
    ) -> None:
        self._check_open()
        self._check_empty()
        fresh, keys = PyShard(), dict[Key, int]()
        fresh.chunks = [[group, extent] for group, extent in zip(groups, extents, strict=True)]
        fresh.committed = list(extents)
        taken = {self._place(location)[1:] for location in locations.tolist()}
        every = {(k, offset) for k, extent in enumerate(extents) for offset in range(extent)}
        fresh.free = every - taken
        for row, (table, flag, raw, location) in enumerate(zip(tables, missing, ids, locations, strict=True)):
            key = (int(table), bool(flag), int(raw))
            hashes = mix64(self.tables[key[0]].uid, key[1], np.array([raw], np.uint64))
            if int(shard_of(hashes, self.num_shards)[0]) != shard:
                raise ValueError(f"snapshot row {row} of shard {shard} has a key that does not belong there")
            if key in keys:
                raise ValueError(f"snapshot row {row} of shard {shard} repeats the key of another row")
            keys[key] = int(location)
        self.restored.append((fresh, keys))

    def finish_restore(self, counted_batches: int, locations: U64, weights: npt.NDArray[np.float32]) -> None:
        self._check_empty()
        self.shards = [shard for shard, _ in self.restored]
        self.locations = {key: place for _, keys in self.restored for key, place in keys.items()}
        self.counts.batches = counted_batches
        divisions = self.counts._divisions()
        pairs = zip(locations.tolist(), weights, strict=True)
        self.counts.stored = {location: (float(weight), divisions) for location, weight in pairs}

    def drop_restore(self) -> None:
        self.restored = []

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
            what = f"ticket {ticket} is no longer open; committed last: {self.last_committed}, and all before it"
            raise ValueError(what + ("" if or_last_committed else COMMIT_IN_ORDER))
        undone = ticket < self.next_ticket
        raise ValueError(f"unknown ticket {ticket}: {'it was undone' if undone else 'this index never gave it out'}")

    def _place(self, location: int) -> tuple[int, int, int]:
        """(shard, k, offset) of a location."""
        _, _, chunk, offset = unpack_location(location)
        k, shard = divmod(chunk, self.num_shards)
        return shard, k, offset

    def _check_locations(self, locations: U64) -> None:
        for position, location in enumerate(locations.tolist()):
            tier, rank, chunk, _ = unpack_location(location)
            if location != ABSENT and (tier or rank != self.rank or self.chunk_group(chunk) is None):
                raise ValueError(f"location {location} at position {position} is of no row of this index")

    def _check_empty(self) -> None:
        if self.locations or self.pending or any(shard.chunks for shard in self.shards):
            raise RuntimeError(
                "restore needs an empty index, new or of a loader that has given no batch yet: this one has rows or "
                "uncommitted tickets"
            )

    def _shards(
        self, ids: U64, missing: npt.NDArray[np.bool_], tables: tuple[int, ...], offsets: npt.NDArray[np.int64]
    ) -> U64:
        hashes = np.empty(len(ids), np.uint64)
        for table, start, end in zip(tables, offsets[:-1], offsets[1:], strict=True):
            uid, part = self.tables[table].uid, slice(start, end)
            hashes[part] = np.where(missing[part], mix64(uid, True, ids[part]), mix64(uid, False, ids[part]))
        return shard_of(hashes, self.num_shards)


def deduplicate_py(columns: Checked, tables: Sequence[IndexTable]) -> list[GroupArrays]:
    """Twin of the native deduplication: unique rows by table, in order of first appearance."""
    if isinstance(columns, CheckedPacked):
        columns = columns.columns()
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
