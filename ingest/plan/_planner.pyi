from headrace.ingest.plan._raw import RawPlan
from headrace.ingest.step_plan import U64

class PlannerCore:
    """Native planner of one rank and one row layout; `headrace.ingest.plan.planner.WindowPlanner` checks its arguments.

    `window` batches beyond the current one, `capacity` arena rows of which the first `r_rows` are pinned; waits for
    write-backs older than `horizon` moves are left out. One thread at a time (RuntimeError otherwise); the GIL is
    released while it works. Without `overlap` nothing is brought ahead.
    """

    def __init__(self, *, window: int, capacity: int, r_rows: int, horizon: int, overlap: bool) -> None: ...
    def set_hot(self, locations: U64) -> None:
        """Pin these rows (uint64 [<= r_rows], contiguous); row i takes slot i. ValueError on a duplicate.

        After any error the planner is as it was before.
        """

    def push(self, locations: U64) -> None:
        """Append a batch (uint64 [U], contiguous); ValueError on a duplicate, CapacityError if it cannot fit.

        After either error the planner is as it was before.
        """

    def pop(self) -> RawPlan:
        """Plan the oldest step; arrays are owned by the caller. RuntimeError unless `ready()`."""

    def finish(self) -> None: ...
    def ready(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def full(self) -> bool:
        """A batch more may not be pushed before a pop."""

    @property
    def window_sizes(self) -> tuple[int, ...]: ...
    @property
    def rows_needed(self) -> int: ...
    @property
    def rows_never_late(self) -> int: ...
    @property
    def peak_resident(self) -> int: ...
    @property
    def window_rows(self) -> int: ...
    @property
    def peak_window_rows(self) -> int: ...
    @property
    def tracked_rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
