"""How many rows the arena must hold."""

from __future__ import annotations

import numpy as np

from headrace.ingest.step_plan import U64


class CapacityError(ValueError):
    """A batch has more cold rows than the window cache has slots.

    With D_t the unique rows of step t, and over the batches pushed so far, the refused one included:

    - `rows_needed` = max over t of |D_t \\ hot| + r_rows: with fewer the planner cannot run;
    - `rows_never_late` = max over t of |(D_t ∪ D_t+1) \\ hot| + r_rows: with as many no row is late for lack of room.

    A later batch may need more. `step` is the refused batch's number in the run, `capacity` the arena's rows. `push`
    raises this as soon as it is given the batch, up to `window` batches before step `step` is planned: the steps before
    it can still be popped, after ``finish()`` all of them. `layout` says in words of which of several row layouts the
    arena is, None where there is one.
    """

    def __init__(
        self, *, step: int, capacity: int, rows_needed: int, rows_never_late: int, layout: str | None = None
    ) -> None:
        arena = "the arena" if layout is None else f"the arena of {layout}"
        super().__init__(
            f"step {step}: {arena} has {capacity} rows; at least {rows_needed} are needed, and {rows_never_late} so "
            "that no row is late for lack of room (as far as the stream was read): raise the capacity, or make the "
            "batch smaller"
        )
        self.step = step
        self.capacity = capacity
        self.rows_needed = rows_needed
        self.rows_never_late = rows_never_late
        self.layout = layout

    def of_layout(self, layout: str) -> CapacityError:
        """The same of one of several row layouts."""
        return CapacityError(
            step=self.step,
            capacity=self.capacity,
            rows_needed=self.rows_needed,
            rows_never_late=self.rows_never_late,
            layout=layout,
        )


class RowsNeeded:
    """What CapacityError tells of the stream so far, of any stream of one row layout, without a plan: no row is hot."""

    def __init__(self) -> None:
        self.rows_needed = self.rows_never_late = 0
        self._before: U64 = np.empty(0, np.uint64)

    def add(self, locations: U64) -> None:
        """The next batch: uint64 [U], all different; kept until the one after it was added."""
        again = len(np.intersect1d(self._before, locations, assume_unique=True))
        self.rows_needed = max(self.rows_needed, len(locations))
        self.rows_never_late = max(self.rows_never_late, len(self._before) + len(locations) - again)
        self._before = locations
