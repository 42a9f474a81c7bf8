"""What R costs for every size of it: the curve of which :func:`choose_hot` names the lowest point."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from headrace.indexer.hotset import choose_hot, touched_by_any
from headrace.indexer.indexed import F64, I64

BAND = 0.01
"""Costs within this share of the lowest are as good as it."""


@dataclass(frozen=True)
class RowCosts:
    """Seconds (or bytes, or any other unit) a row: requested and sent back off the critical path and on it, and
    all-reduced. `c_step` is of each step in which there is an R, whatever its size."""

    c_early: float
    c_late: float
    c_ar: float
    c_step: float = 0.0


@dataclass(frozen=True)
class CostCurve:
    """`cost[r]` float64 [N + 1]: expected cost of a step for one rank with the r rows of most presence in R.

    `optimum` is the smallest r of lowest cost, and all r in [`band_low`, `band_high`] around it cost at most 1 % more;
    `order` int64 [N] are the rows, most presence first.
    """

    cost: F64
    order: I64
    optimum: int
    band_low: int
    band_high: int


def cost_curve(presence: F64, costs: RowCosts, *, world_size: int) -> CostCurve:
    """The cost of each size of R, from the presence q of each row (float64 [N] in [0, 1]) in a rank's batches.

    With P = 1 - (1 - q)^W the chance that any of W ranks touches the row in a step (independent ones, and steps):

    - outside R a rank requests it with chance q, on the critical path if any rank touched it the step before:
      q · (c_early + P · (c_late - c_early));
    - inside R it is all-reduced if any rank touches it: P · c_ar.

    Outside minus inside, divided by P, is the rule of :func:`choose_hot`, which rises with q; so the curve falls to the
    optimum and rises after it, but for its first step, by c_step: where that is more than the best R saves, no R is
    best. ValueError for costs that are no costs, or with c_late < c_early.
    """
    if not (costs.c_step >= 0 and np.isfinite(costs.c_step)):
        raise ValueError(f"c_step={costs.c_step}: it must be finite and not negative")
    hot = choose_hot(presence, world_size=world_size, c_early=costs.c_early, c_late=costs.c_late, c_ar=costs.c_ar)
    order = np.argsort(-presence, kind="stable")
    q = presence[order]
    p = touched_by_any(q, world_size)
    outside = q * (costs.c_early + p * (costs.c_late - costs.c_early))
    inside = p * costs.c_ar
    cost = np.concatenate([[0.0], np.cumsum(inside)]) + np.concatenate([np.cumsum(outside[::-1])[::-1], [0.0]])
    cost[1:] += costs.c_step
    optimum = int(np.count_nonzero(hot))
    if cost[optimum] >= cost[0]:
        optimum = 0
    worse = np.flatnonzero(cost > cost[optimum] * (1 + BAND))
    below, above = worse[worse < optimum], worse[worse > optimum]
    band_low = int(below[-1]) + 1 if len(below) else 0
    return CostCurve(cost, order, optimum, band_low, int(above[0]) - 1 if len(above) else len(order))


def measured_costs(*, row_bytes: int, rows: int = 1 << 16, rounds: int = 5) -> RowCosts:
    """Seconds a row on this machine, of stand-ins in this process for what a step does with a row of `row_bytes`.

    Late: gather it from random places and scatter it back. Early: that copy is off the critical path; what is left on
    it is moving the row once more, in order, in and out of a buffer. All-reduce: add two copies and store the sum. No
    network is in it: costs of a cluster are to be measured there and given.
    """
    width = max(1, row_bytes // 4)
    rng = np.random.default_rng(0)
    store = np.zeros((4 * rows, width), np.float32)
    at = rng.permutation(4 * rows)[:rows]
    buffer, other = np.zeros((rows, width), np.float32), np.ones((rows, width), np.float32)

    def late() -> None:
        np.take(store, at, axis=0, out=buffer)
        store[at] = buffer

    def early() -> None:
        np.copyto(buffer, other)
        np.copyto(other, buffer)

    def reduce() -> None:
        np.add(buffer, other, out=buffer)

    seconds: list[float] = []
    for run in (early, late, reduce):
        run()
        times = []
        for _ in range(rounds):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        seconds.append(median(times) / rows)
    return RowCosts(c_early=min(seconds[0], seconds[1]), c_late=seconds[1], c_ar=seconds[2])
