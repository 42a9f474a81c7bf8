"""The window planner of one rank: batches of locations in, one group plan a step out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.indexer.checks import check_integer
from headrace.indexer.indexed import ABSENT
from headrace.ingest.plan import _planner, _planner_py
from headrace.ingest.plan._raw import Core, RawPlan
from headrace.ingest.step_plan import U64, GroupPlan, Movement

MAX_WINDOW = 1 << 20
MAX_CAPACITY = (1 << 31) - 1


def write_back_horizon(window: int) -> int:
    """Moves after which a write-back has landed for certain: one issued in move m has by the end of move m + horizon.

    This is the executor's duty towards the planner, which therefore names no older write-back in a `fetch_wait`.
    """
    return 2 * (window + 2)


@dataclass(frozen=True)
class PlannerStats:
    """`window_rows` unique rows are in the window, batch by batch; `tracked_rows` distinct rows have a record; the rest
    are rows and bytes. `rows_needed` and `rows_never_late` as in CapacityError, for the stream so far."""

    window_rows: int
    peak_window_rows: int
    peak_resident_rows: int
    tracked_rows: int
    rows_needed: int
    rows_never_late: int


class WindowPlanner:
    """Plans the arena of one row layout, step by step, from the locations of the next `window` batches.

    ``push`` batches until ``ready()``, then ``pop`` one plan, and so on; ``finish()`` after the last batch, then
    ``pop`` until not ``ready()``. The plan of step t is made when batch t + window is there, from batches 0 .. t +
    window alone, so it depends on nothing but the data. README.md states the rules.

    Invariants: resident rows <= capacity; every cold row is in [r_rows, capacity), every hot one in its own slot of
    [0, r_rows); D_t is resident at step t.

    One thread at a time (RuntimeError otherwise, `ready` and `finish` included), but `stats()` and `nbytes` may be read
    from any; the GIL is released while it plans. `native=False` takes the twin in Python. `overlap=False` fetches
    everything late, at its step: what such a plan saves in fetches is the price of fetching ahead.
    """

    def __init__(
        self, *, window: int, capacity: int, r_rows: int = 0, overlap: bool = True, native: bool = True
    ) -> None:
        self.window = check_integer("window", window, 0, MAX_WINDOW)
        self.capacity = check_integer("capacity", capacity, 0, MAX_CAPACITY)
        self.r_rows = check_integer("r_rows (at most the capacity)", r_rows, 0, self.capacity)
        self._pushed = 0
        self._hot_set = False
        core = _planner.PlannerCore if native else _planner_py.PlannerCore
        self._core: Core = core(
            window=self.window,
            capacity=self.capacity,
            r_rows=self.r_rows,
            horizon=write_back_horizon(self.window),
            overlap=overlap,
        )

    def set_hot(self, locations: U64) -> None:
        """Pin these rows (uint64 [H], H <= r_rows, all different), once, before the first push.

        Row i takes R slot i; it is fetched for its first use and never evicted. ValueError on a duplicate, an absent
        location, or more rows than `r_rows`, MemoryError: with nothing changed.
        """
        locations = _checked(locations, "hot locations")
        if self._hot_set or self._pushed:
            raise RuntimeError("the hot set is set once, before the first push")
        if len(locations) > self.r_rows:
            raise ValueError(f"{len(locations)} hot rows do not fit into r_rows = {self.r_rows}")
        self._core.set_hot(locations)
        self._hot_set = True

    def push(self, locations: U64) -> None:
        """Append the next batch: uint64 [U], all different, in the order of the batch's unique rows (read only).

        RuntimeError when a plan is ready (pop first: the window holds window + 1 batches, so that memory is bounded)
        or after finish(); CapacityError, ValueError on a duplicate or an absent location, MemoryError: with nothing
        changed, but for the rows that a CapacityError says are needed.
        """
        locations = _checked(locations, f"step {self._pushed}")
        if self._core.finished:
            raise RuntimeError("push after finish()")
        if self._core.full:
            raise RuntimeError(f"the window of {self.window} + 1 batches is full: pop first")
        self._core.push(locations)
        self._pushed += 1

    def finish(self) -> None:
        """No batch follows: the rest of the window can be popped."""
        self._core.finish()

    def ready(self) -> bool:
        return self._core.ready()

    def pop(self) -> GroupPlan:
        """The plan of the oldest step; its arrays belong to the caller. RuntimeError unless `ready()`."""
        return self._group_plan(self._core.pop())

    def _group_plan(self, raw: RawPlan) -> GroupPlan:
        slots, hot, urgent, late, ahead, hits, resident = raw
        return GroupPlan(
            slots=slots,
            hot=hot,
            urgent=urgent,
            late=Movement(*late),
            ahead=Movement(*ahead),
            hits=hits,
            resident=resident,
            capacity=self.capacity,
            r_rows=self.r_rows,
        )

    @property
    def current_window_sizes(self) -> tuple[int, ...]:
        """Unique rows of each batch in the window, oldest first."""
        return self._core.window_sizes

    def stats(self) -> PlannerStats:
        core = self._core
        return PlannerStats(
            window_rows=core.window_rows,
            peak_window_rows=core.peak_window_rows,
            peak_resident_rows=core.peak_resident,
            tracked_rows=core.tracked_rows,
            rows_needed=core.rows_needed,
            rows_never_late=core.rows_never_late,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the planner holds."""
        return self._core.nbytes


def _checked(locations: U64, what: str) -> U64:
    if not isinstance(locations, np.ndarray) or locations.dtype != np.uint64 or locations.ndim != 1:
        raise TypeError(f"{what}: locations must be a one-dimensional uint64 array")
    if len(locations) and locations.max() == ABSENT:  # the largest of all numbers
        raise ValueError(f"{what}: unique row {np.argmax(locations)} has no location")
    return np.ascontiguousarray(locations)
