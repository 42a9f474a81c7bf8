"""Which share of the accesses, and of the unique rows of batches, the most accessed rows take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.indexer.hotset import Coverage
from headrace.indexer.indexed import I64, U32, U64


def most_accessed(locations: U64, accesses: I64, rows: int) -> U64:
    """The `rows` locations (or all) with most accesses, ties by location, uint64, ascending."""
    order = np.lexsort((locations, -accesses))
    hot: U64 = np.sort(locations[order[: max(0, rows)]])
    return hot


class CoverageMeter:
    """Counts what several hot sets cover of the batches that are added; each set uint64, ascending."""

    def __init__(self, hot_sets: Sequence[U64]) -> None:
        self._hot_sets = tuple(hot_sets)
        self._covered = np.zeros((len(self._hot_sets), 2), np.int64)  # accesses, unique rows
        self._all = np.zeros(2, np.int64)

    def add(self, locations: U64, query_ids: U32) -> None:
        """One batch: its unique rows uint64 [U], and its query ids uint32 [nnz]."""
        accesses = np.bincount(query_ids, minlength=len(locations))
        self._all += (len(query_ids), len(locations))
        for total, hot in zip(self._covered, self._hot_sets, strict=True):
            at = np.searchsorted(hot, locations)
            at[at == len(hot)] = 0
            covered = hot[at] == locations if len(hot) else np.zeros(len(locations), np.bool_)
            total += (int(accesses[covered].sum()), int(covered.sum()))

    def coverage(self) -> list[Coverage]:
        """Of each set; 0.0 of nothing."""
        every = np.maximum(self._all, 1)
        return [Coverage(*(float(part) for part in total / every)) for total in self._covered]
