"""Hit rate and early share of a recorded stream against the rows of the arena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.ingest.plan.bench import CURVE_SHARES
from headrace.ingest.plan.capacity import CapacityError
from headrace.ingest.plan.offline import plan_batches
from headrace.ingest.plan.planner import WindowPlanner
from headrace.ingest.step_plan import U64

Stream = Sequence[Sequence[U64]]
"""For each batch and row layout, uint64 [U]: the locations of its unique rows."""


def capacity_curve(stream: Stream, *, window: int, shares: Sequence[float] = CURVE_SHARES) -> dict[str, Any]:
    """Plan a whole stream, end included, with several capacities, no rows pinned; over the steps from `window` on:

    =================== ============================================================================================
    `hit_rate`          share of the unique rows of a step that were in the arena for an earlier step
    `early_share`       share of them that are early: not used by the step before, and there before the step begins
    `capacity`          rows of the arenas of all row layouts
    `rows_needed`       None, or, where the arena is too small to run (both shares are None then), how many it needs
    =================== ============================================================================================

    ``unbounded`` has an arena of all rows of the stream; ``points`` have one of each share of `window_distinct_rows`,
    the distinct rows of the first `window` batches. `steps` were measured. ValueError if there is none.
    """
    if len(stream) <= window:
        raise ValueError(
            f"{len(stream)} batches; more than the window's {window} are needed, to measure what comes after"
        )
    groups = [[batch[g] for batch in stream] for g in range(len(stream[0]))]
    distinct = [_distinct(group[: max(window, 1)]) for group in groups]
    points = []
    for share in shares:
        points.append({"share": share, **_point(groups, window, [max(1, round(share * rows)) for rows in distinct])})
    return {
        "window": window,
        "steps": len(stream) - window,
        "window_distinct_rows": sum(distinct),
        "unbounded": _point(groups, window, [max(1, _distinct(group)) for group in groups]),
        "points": points,
    }


def _distinct(batches: Sequence[U64]) -> int:
    return len(np.unique(np.concatenate(batches)))


def _point(groups: Sequence[Sequence[U64]], window: int, capacities: Sequence[int]) -> dict[str, Any]:
    requested = hits = early = 0
    try:
        for batches, capacity in zip(groups, capacities, strict=True):
            counts = _counts(batches, window, capacity)
            requested, hits, early = (a + b for a, b in zip((requested, hits, early), counts, strict=True))
    except CapacityError as error:
        return _shares(capacities, None, None, error.rows_needed)
    return _shares(capacities, hits / max(requested, 1), early / max(requested, 1), None)


def _shares(capacities: Sequence[int], hit: float | None, early: float | None, needed: int | None) -> dict[str, Any]:
    return {"capacity": sum(capacities), "hit_rate": hit, "early_share": early, "rows_needed": needed}


def _counts(batches: Sequence[U64], window: int, capacity: int) -> tuple[int, int, int]:
    """(rows requested, hits, early rows) of the steps from `window` on."""
    planner = WindowPlanner(window=window, capacity=capacity)
    requested = hits = early = used_again = 0
    for step, plan in enumerate(plan_batches(batches, planner)):
        if step >= window:
            requested += plan.requested
            hits += plan.hits
            late = len(plan.late.fetch_slots)  # none of these was used by the step before: that would be in the arena
            early += plan.requested - used_again - late if step and window else 0
        used_again = int(plan.urgent.sum())
    return requested, hits, early
