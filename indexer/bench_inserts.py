"""Batches in which a share of the ids has never been seen: what an insertion with growth costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.indexer.dit import DIT
from headrace.indexer.indexed import ABSENT, U64, IdColumn


class FreshIds:
    """32-bit ids that `index` does not hold; none is given out twice, and they are the same in every run."""

    def __init__(self, index: DIT) -> None:
        self._index = index
        self._next = [0] * len(index.tables)

    def take(self, table: int, count: int) -> U64:
        """`count` ids. ValueError when the 32 bits have no more."""
        parts, need = [np.empty(0, np.uint64)], count
        while need:
            begin, end = self._next[table], self._next[table] + need + need // 8 + 16
            if end > 1 << 32:
                raise ValueError(f"table {table} has no 32-bit ids left that were never seen; insert fewer")
            found = self._index.lookup([IdColumn(table, _scattered(np.arange(begin, end, dtype=np.uint64)))])
            group = found.groups[self._index.tables[table].group]
            unseen = np.flatnonzero(group.locations == ABSENT)[:need]
            parts.append(group.unique_ids[unseen])
            need -= len(unseen)
            self._next[table] = begin + int(unseen[-1]) + 1 if need == 0 else end
        return np.concatenate(parts)


def _scattered(numbers: U64) -> U64:
    """A bijection of the 32-bit numbers (MurmurHash3's finaliser)."""
    x: U64 = numbers
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFF_FFFF)
    x = x ^ (x >> np.uint64(16))
    return x


def with_fresh_ids(
    batch: Sequence[IdColumn], share: float, index: DIT, fresh: FreshIds, rng: np.random.Generator
) -> list[IdColumn]:
    """`batch` with `share` of each table's unique ids replaced, wherever they stand, by fresh ones.

    The dtypes and masks of the columns stay, and so does the number of unique ids; a missing value is never replaced.
    """
    values: list[U64] = [np.empty(0, np.uint64)] * len(batch)
    for number, group in enumerate(index.lookup(batch).groups):
        unique = group.unique_ids.copy()
        for table, start, end in zip(group.tables, group.table_offsets, group.table_offsets[1:], strict=False):
            present = start + np.flatnonzero(~group.missing[start:end])
            chosen = rng.permutation(present)[: round(share * (end - start))]
            unique[chosen] = fresh.take(table, len(chosen))
        positions = [p for p, column in enumerate(batch) if index.tables[column.table].group == number]
        ends = np.cumsum([len(batch[p].values) for p in positions])
        for position, part in zip(positions, np.split(unique[group.query_ids], ends[:-1]), strict=True):
            values[position] = part
    return [IdColumn(c.table, v.astype(c.values.dtype), c.missing) for c, v in zip(batch, values, strict=True)]
