"""Which hot sets are examined: the rows of presence at least k, for some k; and which of them the rule names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.indexer.cost_curve import RowCosts
from headrace.indexer.hotset import choose_hot, choose_hot_reducing_all, touched_by_any
from headrace.indexer.indexed import F64, I64, U32

I32 = npt.NDArray[np.int32]


def presence_counts(rows: Sequence[U32], num_rows: int) -> I32:
    """In how many of the batches each row number occurs, int32 [num_rows]; a batch holds each row once."""
    counts = np.zeros(num_rows, np.int32)
    for batch in rows:
        counts[batch] += 1
    return counts


@dataclass(frozen=True)
class Levels:
    """Rows by presence. `at_least` int64 [n + 2]: at_least[k] rows occur in at least k of the n batches (k = 0: in one
    at least, too; k = n + 1: none)."""

    at_least: I64

    @classmethod
    def of(cls, counts: I32, num_batches: int) -> Levels:
        exactly = np.bincount(counts, minlength=num_batches + 2)
        exactly[0] = 0
        return cls(np.cumsum(exactly[::-1])[::-1].astype(np.int64))

    @property
    def num_batches(self) -> int:
        return len(self.at_least) - 2

    @property
    def presence(self) -> F64:
        """q of each level k = 0 .. n."""
        q: F64 = np.arange(self.num_batches + 1) / max(1, self.num_batches)
        return q

    def level_by_rule(self, costs: RowCosts, *, world_size: int, group: int = 1, reduce_all: bool = False) -> int:
        """The least k whose rows the rule replicates (n + 1: none), for requests deduplicated over `group` ranks.

        `world_size` counts those groups. `reduce_all`: the rule of published systems, q · c_a2a > c_ar, where the price
        of a requested row is c_early + P (c_late - c_early).
        """
        q = touched_by_any(self.presence, group)
        if reduce_all:
            p = touched_by_any(q, world_size)
            price = q * (costs.c_early + p * (costs.c_late - costs.c_early)) / max(costs.c_late, 1e-300)
            hot = choose_hot_reducing_all(np.minimum(price, 1.0), c_a2a=costs.c_late, c_ar=costs.c_ar)
        else:
            hot = choose_hot(q, world_size=world_size, c_early=costs.c_early, c_late=costs.c_late, c_ar=costs.c_ar)
        return int(np.argmax(hot)) if hot.any() else self.num_batches + 1

    def examined(self, points: int, wanted: Sequence[int] = ()) -> I64:
        """Levels to examine, descending, so that the sizes of R ascend: n + 1 (R empty), the levels `wanted`, about
        `points` whose sizes are spread evenly over the logarithm, and 1 (every row)."""
        sizes = self.at_least[1:]  # levels 1 .. n + 1
        largest = max(int(sizes[0]), 1)
        targets = np.geomspace(1, largest, points)
        near = np.searchsorted(-sizes, -targets, side="right")  # the highest level of at least that size
        levels = {self.num_batches + 1, 1, *(int(k) for k in near), *wanted}
        chosen: dict[int, int] = {}
        for k in sorted(levels, reverse=True):
            if 1 <= k <= self.num_batches + 1:
                chosen.setdefault(int(self.at_least[k]), k)  # of levels with the same rows one is enough
        return np.array(list(chosen.values()), np.int64)


def bin_of_counts(levels: I64, num_batches: int) -> npt.NDArray[np.uint8]:
    """For each count 0 .. n the bin of its rows: rows of bin b are in the hot sets number b + 1 and on, uint8 [n + 1].

    Hot set j holds the rows of presence levels[j] or more; `levels` descend.
    """
    counts = np.arange(num_batches + 1)
    # levels greater than the count: the sets that do not hold the row; set 0 is empty
    missing: npt.NDArray[np.int64] = np.searchsorted(-levels, -counts, side="left")
    return (missing - 1).clip(0).astype(np.uint8)
