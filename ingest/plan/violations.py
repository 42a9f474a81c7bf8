"""What can be wrong with a plan."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    # what the step would compute with
    STALE_READ = "the step gathers a row that lacks updates"
    WRONG_ROW = "the slot holds another row"
    NOT_RESIDENT = "the row is not in the arena when the step gathers it"
    # where rows are
    DOUBLE_RESIDENCY = "the row is fetched while it is in the arena"
    SLOT_CONFLICT = "a row is fetched into a slot that is taken"
    SLOT_RANGE = "the slot is outside the arena"
    R_REGION = "a cold row in the R chunk, a hot row outside it, or an eviction from it"
    EVICTS_NEEDED = "the evicted row is needed by the step or the next one"
    EVICTS_ABSENT = "the evicted row is not in that slot"
    AHEAD_TOUCHES_GATHERED = "the ahead movement touches a slot that the running step gathers"
    # waits
    MISSING_FETCH_WAIT = "the fetch does not wait for the row's last write-back"
    MISSING_SLOT_WAIT = "the fetch does not wait for the eviction that vacated its slot"
    FALSE_WAIT = "the wait names something that never happened, or is long past"
    # what the plan says of itself
    FETCH_UNIQUE = "a fetched row is not the unique row that fetch_unique names"
    KEYS = "the key of a fetched row is not that of the unique row that fetch_unique names"
    DUPLICATE_SLOTS = "two unique rows of the step share a slot"
    URGENT = "urgent is not: used at the next step"
    COUNT = "hits or resident miscounted"
    UNIQUE_COUNT = "the plan is for another number of unique rows"
    MALFORMED = "arrays of a movement, or keys, differ in length"
    LAYOUT = "run, window, groups, capacity, r_rows or row_bytes differ from what they were"
    # the sequence of plans
    STEP_ORDER = "a step was lost or replayed"
    LOST_TAIL = "the last steps have no plan, or the last plan prepares a step that never comes"


@dataclass(frozen=True)
class Violation:
    """`kind` at `step`, of the row layout `group` (-1: all), and the row and slot if it is about one."""

    kind: Kind
    step: int
    group: int
    location: int | None = None
    slot: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        where = f"step {self.step}" + (f", group {self.group}" if self.group >= 0 else "")
        row = (f", row {self.location:#x}" if self.location is not None else "") + (
            f", slot {self.slot}" if self.slot is not None else ""
        )
        return f"{where}{row}: {self.kind.value}" + (f" ({self.detail})" if self.detail else "")


class PlanViolationError(RuntimeError):
    """A plan is invalid; `violations` lists all that is wrong."""

    def __init__(self, violations: list[Violation]) -> None:
        shown = [str(v) for v in violations[:5]]
        more = len(violations) - len(shown)
        super().__init__("\n".join([*shown, *([f"... and {more} more"] if more else [])]))
        self.violations = violations
