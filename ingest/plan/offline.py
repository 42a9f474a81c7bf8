"""Plans of a whole list of batches at once: for tests, traces and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headrace.ingest.plan.planner import WindowPlanner
from headrace.ingest.step_plan import U64, FetchKeys, GroupPlan, StepPlan


def plan_batches(batches: Iterable[U64], planner: WindowPlanner) -> Iterator[GroupPlan]:
    """Push `batches` through a fresh `planner`, to the end; one plan a batch."""
    for batch in batches:
        planner.push(batch)
        while planner.ready():
            yield planner.pop()
    planner.finish()
    while planner.ready():
        yield planner.pop()


def step_plans(groups: Sequence[Iterable[GroupPlan]], *, window: int, row_bytes: int = 64) -> list[StepPlan]:
    """Step plans of the plans of each row layout; the keys are blank, as locations are all that a trace holds."""
    return [
        StepPlan(
            run=0,
            step=step,
            window=window,
            groups=plans,
            row_bytes=(row_bytes,) * len(plans),
            late_keys=tuple(_blank_keys(len(plan.late.fetch_slots)) for plan in plans),
            ahead_keys=tuple(_blank_keys(len(plan.ahead.fetch_slots)) for plan in plans),
        )
        for step, plans in enumerate(zip(*groups, strict=True))
    ]


def _blank_keys(count: int) -> FetchKeys:
    return FetchKeys(np.zeros(count, np.uint64), np.zeros(count, np.uint32), np.zeros(count, np.bool_))
