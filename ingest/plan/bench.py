"""Time of the window planner, beside a planner in NumPy, and how near its plans are to the offline optimum."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from headrace.ingest.plan._planner_numpy import NumpyPlanner
from headrace.ingest.plan.capacity import CapacityError
from headrace.ingest.plan.planner import WindowPlanner
from headrace.ingest.step_plan import U64, GroupPlan

CURVE_SHARES = (0.01, 0.02, 0.05, 0.10, 0.25, 0.50)


def measure(
    batches: Sequence[U64],
    *,
    window: int,
    capacity_share: float,
    warm_up: int = 100,
    numpy: bool = True,
    curve: bool = False,
) -> dict[str, Any]:
    """Plan `batches`, the unique locations (uint64 [U]) of each, and report; keys as `headrace bench plan` writes them.

    The capacity is `capacity_share` of the distinct rows of the first `window` batches. Step t is measured if the
    window was full when it was planned and t >= `warm_up` (the arena is to be full too). All times are milliseconds a
    batch, medians over the measured steps, of `push` and `pop` with their checks: rows come in deduplicated.

    ================ =================================================================================================
    `plan_ms`        push of one batch and pop of one plan, by the wall clock; `plan_cpu_ms` by the thread's own
    `plan_min_ms`    the fastest of these steps: what is left when no other process takes cache or memory
    `numpy_ms`       :class:`NumpyPlanner` on the same batches: the same fetches and evictions of the same steps
    `hit_rate`       share of the requested rows that were in the arena for an earlier step
    `early_share`    share of the fetched rows that were brought ahead
    `rows_in_eight`  distinct rows of the first window for each eight neighbouring locations that it uses: 8 where all
                     are used, 1 where no row has a neighbour in use; planning costs more where they are few
    `peak_rows`      rows in the arena at most
    `planner_bytes`  memory of the planner with a full window
    `belady_gap`     fetches of all steps / fetches of Belady's offline optimum - 1. The optimum knows the whole
                     stream, fetches what a step lacks at that step (nothing ahead) and evicts the row used farthest
                     in the future: no schedule with this capacity fetches fewer rows
    `overlap_cost`   fetches of all steps / fetches of the planner that knows the same window but fetches nothing ahead
                     - 1: the price, in rows, of fetching while the step before runs
    ================ =================================================================================================

    With `curve` the hit rates at :data:`CURVE_SHARES` too; null where the capacity is too small to run.
    """
    if len(batches) <= window + warm_up:
        raise ValueError(f"{len(batches)} batches; more than window + warm-up = {window + warm_up} are needed")
    rows = np.unique(np.concatenate(batches[: max(window, 1)]))
    distinct = len(rows)
    capacity = round(capacity_share * distinct)
    run = _Run(batches, WindowPlanner(window=window, capacity=capacity), warm_up)
    report: dict[str, Any] = {
        "steps": len(run.wall_s),
        "window": window,
        "window_distinct_rows": distinct,
        "rows_in_eight": distinct / max(len(np.unique(rows >> np.uint64(3))), 1),
        "capacity": capacity,
        "unique_rows": sum(map(len, batches)) / len(batches),
        "plan_ms": 1e3 * median(run.wall_s),
        "plan_min_ms": 1e3 * min(run.wall_s),
        "plan_cpu_ms": 1e3 * median(run.cpu_s),
        "push_ms": 1e3 * median(run.push_s),
        "pop_ms": 1e3 * median(map(float.__sub__, run.wall_s, run.push_s)),
        "numpy_ms": _numpy_ms(batches, window, capacity, warm_up) if numpy else None,
        "hit_rate": run.hit_rate,
        "early_share": run.early / max(run.early + run.late, 1),
        "fetched_rows": (run.early + run.late) / max(len(run.wall_s), 1),
        "peak_rows": run.planner.stats().peak_resident_rows,
        "planner_bytes": run.planner_bytes,
    }
    fetches = run.fetches
    report["belady_gap"] = fetches / _late_fetches(batches, len(batches), capacity) - 1
    report["overlap_cost"] = fetches / _late_fetches(batches, window, capacity) - 1
    if curve:
        report["curve"] = hit_rate_curve(batches, window=window, distinct=distinct, warm_up=warm_up)
    return report


def hit_rate_curve(
    batches: Sequence[U64], *, window: int, distinct: int, warm_up: int, shares: Sequence[float] = CURVE_SHARES
) -> list[dict[str, Any]]:
    """Hit rate at a capacity of each share of the `distinct` rows, measured as by :func:`measure`."""
    points: list[dict[str, Any]] = []
    for share in shares:
        capacity = round(share * distinct)
        point: dict[str, Any] = {"share": share, "capacity": capacity, "hit_rate": None, "rows_needed": None}
        try:
            point["hit_rate"] = _Run(batches, WindowPlanner(window=window, capacity=capacity), warm_up).hit_rate
        except CapacityError as error:
            point["rows_needed"] = error.rows_needed
        points.append(point)
    return points


class _Run:
    """One pass over all batches; times and counts of the measured steps, fetches of all."""

    def __init__(self, batches: Sequence[U64], planner: WindowPlanner, warm_up: int) -> None:
        self.planner = planner
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self.push_s: list[float] = []
        self.fetches = self.early = self.late = self.planner_bytes = 0
        hits = requested = step = 0
        for batch in batches:
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            planner.push(batch)
            pushed = time.perf_counter()
            if not planner.ready():
                continue
            plan = planner.pop()
            end, end_cpu = time.perf_counter(), time.thread_time()
            self._count(plan)
            if step >= warm_up:
                self.wall_s.append(end - begin)
                self.cpu_s.append(end_cpu - begin_cpu)
                self.push_s.append(pushed - begin)
                hits += plan.hits
                requested += plan.requested
                self.early += len(plan.ahead.fetch_slots)
                self.late += len(plan.late.fetch_slots)
            step += 1
        self.planner_bytes = planner.nbytes
        self.hit_rate = hits / max(requested, 1)
        planner.finish()
        while planner.ready():
            self._count(planner.pop())

    def _count(self, plan: GroupPlan) -> None:
        self.fetches += len(plan.ahead.fetch_slots) + len(plan.late.fetch_slots)


def _late_fetches(batches: Sequence[U64], window: int, capacity: int) -> int:
    return _Run(batches, WindowPlanner(window=window, capacity=capacity, overlap=False), len(batches)).fetches


def _numpy_ms(batches: Sequence[U64], window: int, capacity: int, warm_up: int) -> float:
    planner = NumpyPlanner(batches, window=window, capacity=capacity)
    seconds = []
    for _ in range(len(batches) - window):
        begin = time.perf_counter()
        planner.step()
        seconds.append(time.perf_counter() - begin)
    return 1e3 * median(seconds[warm_up:])
