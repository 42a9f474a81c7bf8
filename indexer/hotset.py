"""The choice of R, the hot rows that every rank holds: pure functions of presence, and the counter that measures it.

The presence q of a row is the share of worker-batches that contain it, not its share of the accesses: ids are
deduplicated per batch before anything travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.indexer.checks import check_integer
from headrace.indexer.indexed import ABSENT, F64, I64, U32, U64, Bool


def touched_by_any(presence: F64, world_size: int) -> F64:
    """P = 1 - (1 - q)^W, the chance that any of W ranks (or of a node's ranks) touches the row, float64 [N]."""
    with np.errstate(divide="ignore"):  # q = 1
        p: F64 = -np.expm1(world_size * np.log1p(-presence))
    return p


def choose_hot(presence: F64, *, world_size: int, c_early: float, c_late: float, c_ar: float) -> Bool:
    """Mask bool [N] of the rows to replicate: q·(c_late - c_early) + c_early·q / P > c_ar.

    `presence` is float64 [N] in [0, 1]. The costs are seconds a row: requested (there and back) off the critical path
    and on it, and all-reduced. As c_late >= c_early the left side rises with q, so that this threshold is the exact
    optimum. A row that no batch contained is never hot. The mask may be empty. ValueError for other numbers.
    """
    _check(presence, world_size, c_early, c_late, c_ar)
    if c_late < c_early:
        raise ValueError(f"c_late is {c_late}, c_early {c_early}: a late row cannot cost less than an early one")
    share = np.zeros_like(presence)
    np.divide(presence, touched_by_any(presence, world_size), out=share, where=presence > 0)
    hot: Bool = (presence > 0) & (presence * (c_late - c_early) + c_early * share > c_ar)
    return hot


def choose_hot_reducing_all(presence: F64, *, c_a2a: float, c_ar: float) -> Bool:
    """The rule of published systems, which all-reduce the whole of R at every step: q·c_a2a > c_ar. For comparison."""
    _check(presence, 1, c_a2a, c_ar)
    hot: Bool = presence * c_a2a > c_ar
    return hot


_DENSE_SPAN = 8
"""Locations are counted in an array over all of their range when it is at most so many times as long as they are."""


class Coverage(NamedTuple):
    """Shares, 0 to 1, of the accesses and of the unique rows of batches that fall on hot rows; 0.0 of nothing."""

    accesses: float
    unique_rows: float


def coverage(hot: Bool, *, accesses: I64, batches: I64) -> Coverage:
    """What the rows `hot`, bool [N], cover; int64 [N] accesses of each row, and batches that contain it."""
    return Coverage(_share(accesses, hot), _share(batches, hot))


class PresenceCounter:
    """Counts, for each location, the batches that contain it and its accesses, over the first `max_batches` batches.

    Batches are merged in lots: memory is that of the distinct locations plus one lot.
    """

    def __init__(self, max_batches: int = 100) -> None:
        self._max_batches = check_integer("max_batches", max_batches, 1, (1 << 63) - 1)
        self._num_batches = 0
        self._locations: U64 = np.empty(0, np.uint64)  # ascending
        self._counts: I64 = np.empty((2, 0), np.int64)  # batches, accesses
        self._lot: list[tuple[U64, I64]] = []
        self._lot_rows = 0

    @property
    def num_batches(self) -> int:
        return self._num_batches

    @property
    def full(self) -> bool:
        return self._num_batches == self._max_batches

    def add(self, locations: U64, query_ids: U32 | None = None) -> bool:
        """Count one batch: its unique rows uint64 [U] and, for the accesses, its query ids uint32 [nnz].

        False, and nothing is counted, once the counter is full. ValueError for ABSENT or repeated locations.
        """
        if self.full:
            return False
        rows = np.array(locations, np.uint64)
        ordered = np.sort(rows)
        if (len(rows) and ordered[-1] == ABSENT) or (ordered[1:] == ordered[:-1]).any():
            raise ValueError("a batch to count must hold each location once and no ABSENT one: pass unique rows")
        accesses = np.zeros(len(rows), np.int64)
        if query_ids is not None:
            accesses = np.bincount(query_ids, minlength=len(rows)).astype(np.int64)
            if len(accesses) != len(rows):
                raise ValueError(f"a query id is {query_ids.max()}, the batch has {len(rows)} unique rows")
        self._lot.append((rows, accesses))
        self._lot_rows += len(rows)
        self._num_batches += 1
        if self._lot_rows > max(1 << 20, len(self._locations)):
            self._merge()
        return True

    def locations(self) -> U64:
        """Distinct locations, uint64 [N], ascending: the order of the arrays below."""
        self._merge()
        return np.array(self._locations)

    def batches(self) -> I64:
        """Batches that contain each location, int64 [N]."""
        self._merge()
        return np.array(self._counts[0])

    def accesses(self) -> I64:
        """Accesses of each location, int64 [N]; of the batches that came with query ids."""
        self._merge()
        return np.array(self._counts[1])

    def presence(self) -> F64:
        """Share of the batches that contain each location, float64 [N]."""
        return self.batches() / max(1, self._num_batches)

    def top(self, k: int) -> U64:
        """The k locations (or all) in most batches, most frequent first, ties by location."""
        self._merge()
        batches = self._counts[0]  # of ascending locations: a stable sort keeps their order
        few = self._num_batches <= np.iinfo(np.uint16).max  # then the sort is by radix
        order = np.argsort((self._num_batches - batches).astype(np.uint16 if few else np.int64), kind="stable")
        return np.array(self._locations[order[: max(0, k)]])

    def _merge(self) -> None:
        if not self._lot:
            return
        seen = [np.stack([np.ones(len(rows), np.int64), accesses]) for rows, accesses in self._lot]
        self._locations, self._counts = _summed(
            [self._locations, *(rows for rows, _ in self._lot)], [self._counts, *seen]
        )
        self._lot, self._lot_rows = [], 0


def _summed(locations: Sequence[U64], counts: Sequence[I64]) -> tuple[U64, I64]:
    """Distinct locations, ascending, and the sums of their columns in counts [2, ...]."""
    some = [rows for rows in locations if len(rows)]
    first = min((int(rows.min()) for rows in some), default=0)
    span = max((int(rows.max()) for rows in some), default=-1) + 1 - first
    if span <= _DENSE_SPAN * sum(map(len, some)):  # places are handed out one after the other: count them in place
        dense = np.zeros((2, span), np.int64)
        for rows, columns in zip(locations, counts, strict=True):  # no location twice in one of them
            dense[:, (rows - np.uint64(first)).astype(np.int64)] += columns
        there = np.flatnonzero(dense[0])  # each was in a batch
        return there.astype(np.uint64) + np.uint64(first), dense[:, there]
    rows = np.concatenate(locations)
    stacked = np.concatenate(counts, axis=1)  # (2, rows)
    every, inverse = np.unique(rows, return_inverse=True)
    # bincount adds float64: exact, as no count reaches 2^53
    total = np.stack([np.bincount(inverse, weights=row, minlength=len(every)) for row in stacked])
    return every, total.astype(np.int64)


def _share(counts: I64, hot: Bool) -> float:
    total = int(counts.sum())
    return int(counts[hot].sum()) / total if total else 0.0


def _check(presence: F64, world_size: int, *costs: float) -> None:
    check_integer("world_size", world_size, 1, 1 << 31)
    if not all(np.isfinite(cost) and cost >= 0 for cost in costs):
        raise ValueError(f"costs are {costs}; each must be finite and not negative")
    if not ((presence >= 0) & (presence <= 1)).all():  # NaN too
        raise ValueError("presence must lie in [0, 1]: the share of batches that contain the row")
