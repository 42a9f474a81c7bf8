"""The plan of one step, as data: which rows must be in which slot, and what has to move for it.

The plan of step t of one rank says, for each row layout:

- `late`: moved at the boundary between steps t - 1 and t, before step t gathers;
- `slots`: where step t gathers each of its unique rows;
- `ahead`: moved during step t, for step t + 1 (empty when the window is 0, and at the last step);
- `urgent`: whose gradients are needed at step t + 1, so that their update is on the critical path.

In both movements evictions come first (write the row back to its chunk, vacate the slot), then fetches (read the row
from its chunk, or make its initial vector if it was never written, into the slot).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

NEVER = -1
"""In a wait: there is nothing to wait for."""


@dataclass(frozen=True)
class Movement:
    """Rows that leave and enter the arena, in the order in which they are listed.

    ==================== =========== =====================================================================
    `evict_locations`    uint64 [E]  rows written back to their chunk
    `evict_slots`        int64 [E]   the slots that they vacate
    `fetch_locations`    uint64 [N]  rows brought in
    `fetch_slots`        int64 [N]   the slots that they take
    `fetch_unique`       int64 [N]   position of the row in the unique rows of the step that it is fetched for
    `fetch_wait`         int64 [N]   move number of the row's last write-back, which must have landed; or NEVER
    `slot_wait`          int64 [N]   move number of the eviction that vacated the slot (it must have read it); or NEVER
    ==================== =========== =====================================================================

    A *move number* is 2t for the `late` movement of step t and 2t + 1 for its `ahead` movement. Waits may name this
    very movement, since evictions precede fetches in it.
    """

    evict_locations: U64
    evict_slots: I64
    fetch_locations: U64
    fetch_slots: I64
    fetch_unique: I64
    fetch_wait: I64
    slot_wait: I64


@dataclass(frozen=True)
class FetchKeys:
    """The keys of the fetched rows of a movement, same order: what a row that was never written starts from.

    uint64 [N] raw ids, uint32 [N] table uids, bool [N] missing flags.
    """

    ids: U64
    tables: U32
    missing: Bool


EMPTY_KEYS = FetchKeys(ids=np.empty(0, np.uint64), tables=np.empty(0, np.uint32), missing=np.empty(0, np.bool_))


@dataclass(frozen=True)
class GroupPlan:
    """One row layout's share of a step plan.

    `slots` int64 [U], `hot` bool [U] (the row is pinned in the R chunk, slots [0, r_rows)), `urgent` bool [U].
    `hits` of the U requested rows were in the arena for an earlier step. `resident` rows are in the arena while step t
    runs, `ahead` included.
    """

    slots: I64
    hot: Bool
    urgent: Bool
    late: Movement
    ahead: Movement
    hits: int
    resident: int
    capacity: int
    r_rows: int

    @property
    def requested(self) -> int:
        return len(self.slots)


@dataclass(frozen=True)
class StepPlan:
    """Plan of step `step` (0 is the first batch of this run of the planner) with a window of `window` batches.

    `run` numbers the planner's runs within a process: a new run starts with an empty arena (new epoch, `break`,
    resume). `row_bytes[g]` is the size of a row with its optimizer state. `late_keys` and `ahead_keys` belong to the
    movements of `groups`.
    """

    run: int
    step: int
    window: int
    groups: tuple[GroupPlan, ...]
    row_bytes: tuple[int, ...]
    late_keys: tuple[FetchKeys, ...]
    ahead_keys: tuple[FetchKeys, ...]

    @property
    def bytes_fetched(self) -> int:
        """Host-to-device bytes: rows fetched late for this step and ahead for the next one."""
        return sum(
            b * (len(g.late.fetch_slots) + len(g.ahead.fetch_slots))
            for b, g in zip(self.row_bytes, self.groups, strict=True)
        )

    @property
    def bytes_written_back(self) -> int:
        """Device-to-host bytes of the evictions."""
        return sum(
            b * (len(g.late.evict_slots) + len(g.ahead.evict_slots))
            for b, g in zip(self.row_bytes, self.groups, strict=True)
        )

    def digest(self) -> str:
        """Hex digest of all that the plan says, the run number aside (the same data gives the same digest)."""
        state = hashlib.sha256(repr((self.step, self.window, self.row_bytes)).encode())
        for group in self.groups:
            state.update(repr((group.hits, group.resident, group.capacity, group.r_rows)).encode())
            _update_all(state, group.slots, group.hot, group.urgent)
            for movement in (group.late, group.ahead):
                _update_all(state, *(getattr(movement, f.name) for f in fields(movement)))
        for keys in (*self.late_keys, *self.ahead_keys):
            _update_all(state, keys.ids, keys.tables, keys.missing)
        return state.hexdigest()


def _update_all(state: hashlib._Hash, *arrays: npt.NDArray[Any]) -> None:
    for array in arrays:
        state.update(f"{array.dtype.str}{len(array)};".encode())
        state.update(np.ascontiguousarray(array).tobytes())
