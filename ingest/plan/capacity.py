"""How many rows the arena must hold."""

from __future__ import annotations


class CapacityError(ValueError):
    """A batch has more cold rows than the window cache has slots.

    With D_t the unique rows of step t, and over the batches pushed so far, the refused one included:

    - `rows_needed` = max over t of |D_t \\ hot| + r_rows: with fewer the planner cannot run;
    - `rows_never_late` = max over t of |(D_t ∪ D_t+1) \\ hot| + r_rows: with as many no row is late for lack of room.

    A later batch may need more. `step` is the refused batch's number in the run, `capacity` the arena's rows. `push`
    raises this as soon as it is given the batch, up to `window` batches before step `step` is planned: the steps before
    it can still be popped, after ``finish()`` all of them.
    """

    def __init__(self, *, step: int, capacity: int, rows_needed: int, rows_never_late: int) -> None:
        super().__init__(
            f"step {step}: the arena has {capacity} rows; at least {rows_needed} are needed, and {rows_never_late} so "
            "that no row is late for lack of room (as far as the stream was read): raise the capacity, or make the "
            "batch smaller"
        )
        self.step = step
        self.capacity = capacity
        self.rows_needed = rows_needed
        self.rows_never_late = rows_never_late
