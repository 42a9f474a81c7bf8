"""Which row is in which slot of an arena, and which slots hold rows that their chunks do not know yet.

This is bookkeeping alone, done by the trainer when a movement is asked for; the rows follow (see `arena.py`). So a plan
that does not fit is refused before anything moves, at the forward that brought it, whoever copies the rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.embed.arrays import I64, U64, Bool
from headrace.ingest.step_plan import NEVER, Movement

_STAYS, _LEAVES = -1, -2
"""What a movement does to the row in a slot; 0 and more: the fetched row that takes its place."""


class PlanError(RuntimeError):
    """A plan that does not fit the arena's contents; nothing of the movement has been done."""


class HeldRows(NamedTuple):
    """Slots int64 [n] and the locations uint64 [n] of the rows in them."""

    slots: I64
    locations: U64


def _raise_wrong(wrong: Bool, slots: I64, locations: U64, action: str) -> None:
    if wrong.any():
        i = int(wrong.argmax())
        raise PlanError(f"{action} row {int(locations[i]):#x} in slot {int(slots[i])}, which does not hold it")


class SlotTable:
    """State of `capacity` slots: free, or taken by a row that is *clean* or, from its update until its write-back,
    *dirty*.

    Only dirty rows are written back: a clean one is equal to what its chunk holds, or to what a row that was never
    written reads as.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"capacity={capacity} is negative")
        self.capacity = capacity
        self._locations = np.zeros(capacity, np.uint64)
        self._taken = np.zeros(capacity, np.bool_)
        self._dirty = np.zeros(capacity, np.bool_)
        self._scratch = np.empty(capacity, np.int64)  # of the checks of one movement

    @property
    def num_taken(self) -> int:
        return int(self._taken.sum())

    def check(self, movement: Movement, number: int) -> None:
        """PlanError for a movement that does not fit; `number` is 2t for the late one of step t, 2t + 1 for its ahead
        one."""
        for name, waits in (("fetch_wait", movement.fetch_wait), ("slot_wait", movement.slot_wait)):
            if len(waits) and int(waits.max()) > number:
                raise PlanError(f"movement {number} waits for the later movement {int(waits.max())} ({name})")
        for slots in (movement.evict_slots, movement.fetch_slots):
            self._check_slots(slots)
        self.check_held(movement.evict_slots, movement.evict_locations, f"movement {number} evicts")
        order = np.arange(len(movement.fetch_slots))
        self._scratch[movement.fetch_slots] = order
        if (self._scratch[movement.fetch_slots] != order).any():
            raise PlanError(f"movement {number} fetches two rows into one slot")
        self._scratch[movement.fetch_slots] = NEVER
        self._scratch[movement.evict_slots] = number
        taken = self._taken[movement.fetch_slots] & (self._scratch[movement.fetch_slots] == NEVER)
        if taken.any():
            slot = int(movement.fetch_slots[taken.argmax()])
            raise PlanError(f"movement {number} fetches into slot {slot}, which is not free")

    def move(self, movement: Movement) -> HeldRows:
        """Evict, then fetch, after :meth:`check`; the dirty rows among the victims, which must be written back."""
        left = self._dirty_of(movement.evict_slots)
        self._dirty[left.slots] = False
        self._taken[movement.evict_slots] = False
        self._locations[movement.fetch_slots] = movement.fetch_locations
        self._taken[movement.fetch_slots] = True
        return left

    def mark_dirty(self, slots: I64) -> None:
        """The rows in `slots` are newer than their chunks."""
        self._dirty[slots] = True

    def dirty(self) -> HeldRows:
        """All dirty rows."""
        return self._dirty_of(np.flatnonzero(self._dirty))

    def mark_clean(self, slots: I64) -> None:
        """The rows in `slots` are as in their chunks."""
        self._dirty[slots] = False

    def find(self, locations: U64) -> I64:
        """Slots int64 [n] that hold the rows of locations uint64 [n], -1 where none does."""
        taken = np.flatnonzero(self._taken)
        taken = taken[np.argsort(self._locations[taken])]
        held = self._locations[taken]
        at = np.searchsorted(held, locations)
        inside = at < len(held)
        inside[inside] = held[at[inside]] == locations[inside]
        found = np.full(len(locations), -1)
        found[inside] = taken[at[inside]]
        return found

    def check_held(self, slots: I64, locations: U64, action: str) -> None:
        """PlanError unless slots[i] holds the row of locations[i]."""
        self._check_slots(slots)
        _raise_wrong(~self._held(slots, locations), slots, locations, action)

    def check_gathered(self, slots: I64, locations: U64, first: Movement | None) -> None:
        """PlanError unless slots[i] holds the row of locations[i]; or will hold it after the movement `first`, which
        fits and was not done."""
        if first is None:
            self.check_held(slots, locations, "gathers")
            return
        self._check_slots(slots)
        self._scratch[slots] = _STAYS
        self._scratch[first.evict_slots] = _LEAVES
        self._scratch[first.fetch_slots] = np.arange(len(first.fetch_slots))
        entry = self._scratch[slots]
        held = self._held(slots, locations) & (entry == _STAYS)
        fetched = entry >= 0
        held[fetched] = first.fetch_locations[entry[fetched]] == locations[fetched]
        _raise_wrong(~held, slots, locations, "gathers")

    def _held(self, slots: I64, locations: U64) -> Bool:
        """Whether slots[i] holds the row of locations[i]."""
        held: Bool = (self._locations[slots] == locations) & self._taken[slots]
        return held

    def _dirty_of(self, slots: I64) -> HeldRows:
        dirty = slots[self._dirty[slots]]
        return HeldRows(dirty, self._locations[dirty])

    def _check_slots(self, slots: I64) -> None:
        if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < self.capacity:
            raise PlanError(f"slots {int(slots.min())} to {int(slots.max())} in an arena of {self.capacity} rows")
