"""The device's array of rows for one row layout, moved by plan and gathered by slot.

On the CPU a movement runs synchronously. Its waits are already kept by the order of execution (evictions before
fetches, movement after movement), and are checked all the same: a device that copies asynchronously waits where this
checks.

A row is *dirty* from its update until its write-back. Only dirty rows are written back: a clean one is equal to what
its chunk holds, or to what a row that was never written reads as.
"""

from __future__ import annotations

import numpy as np
import torch

from headrace.embed._rows import RowSource, SlotRows, SlotSource
from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, U64
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.optimizers import UpdateRule
from headrace.indexer.indexed import ABSENT
from headrace.ingest.step_plan import NEVER, FetchKeys, Movement


class PlanError(RuntimeError):
    """A plan that does not fit the arena's contents; nothing of the movement has been done."""


class Arena:
    """`capacity` rows of `store`'s width by slot; memory is taken as slots are first used."""

    def __init__(self, capacity: int, store: ChunkStore, threads: Threads | None = None) -> None:
        if capacity < 0:
            raise ValueError(f"capacity={capacity} is negative")
        self.capacity = capacity
        self._store = store
        self._threads = threads
        self._values: F32 = np.zeros((capacity, store.width), np.float32)
        self.rows = torch.from_numpy(self._values)
        self._locations = np.zeros(capacity, np.uint64)
        self._taken = np.zeros(capacity, np.bool_)
        self._dirty = np.zeros(capacity, np.bool_)
        self._scratch = np.empty(capacity, np.int64)  # of the checks of one movement

    @property
    def num_resident(self) -> int:
        return int(self._taken.sum())

    def move(self, movement: Movement, keys: FetchKeys, number: int) -> None:
        """Do movement `number` (2t for the late one of step t, 2t + 1 for its ahead one): evictions, then fetches."""
        self._check(movement, number)
        self._write_back(movement.evict_slots)
        self._taken[movement.evict_slots] = False
        self._store.read(
            movement.fetch_locations, keys.ids, keys.tables, keys.missing, self._values, slots=movement.fetch_slots
        )
        self._locations[movement.fetch_slots] = movement.fetch_locations
        self._taken[movement.fetch_slots] = True

    def gather(self, slots: I64, locations: U64, out: F32) -> None:
        """out[i] = vector of the row in slots[i], which must hold the row of locations[i]."""
        self.check_gathered(slots, locations)
        SlotRows.gather(self._values, slots, out, self._threads)

    def check_gathered(self, slots: I64, locations: U64) -> None:
        """PlanError unless slots[i] holds the row of locations[i]."""
        self._check_held(slots, locations, "gathers")

    def source(self, slots: I64) -> RowSource:
        """The vectors in `slots`."""
        return SlotSource(self._values, slots, self._store.dim)

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

    def update(self, slots: I64, grads: F32, rule: UpdateRule) -> None:
        """One optimizer step on the rows in `slots` (unique), grads float32 [n, dim]."""
        SlotRows.update(self._values, slots, grads, rule.native, self._threads)
        self._dirty[slots] = True

    def write(self, slots: I64, rows: F32) -> None:
        """Replace the rows in `slots` (unique) by rows float32 [n, dim + state]."""
        self._values[slots] = rows
        self._dirty[slots] = True

    def flush(self) -> None:
        """Write every dirty row back; rows stay where they are."""
        self._write_back(np.flatnonzero(self._dirty))

    def _write_back(self, slots: I64) -> None:
        dirty = slots[self._dirty[slots]]
        self._store.write(self._locations[dirty], self._values, slots=dirty)
        self._dirty[dirty] = False

    def _check(self, movement: Movement, number: int) -> None:
        for name, waits in (("fetch_wait", movement.fetch_wait), ("slot_wait", movement.slot_wait)):
            if len(waits) and int(waits.max()) > number:
                raise PlanError(f"movement {number} waits for the later movement {int(waits.max())} ({name})")
        for slots in (movement.evict_slots, movement.fetch_slots):
            self._check_slots(slots)
        self._check_held(movement.evict_slots, movement.evict_locations, f"movement {number} evicts")
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
        if (movement.fetch_locations == ABSENT).any():
            raise PlanError(f"movement {number} fetches a row that has no location")

    def _check_slots(self, slots: I64) -> None:
        if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < self.capacity:
            raise PlanError(f"slots {int(slots.min())} to {int(slots.max())} in an arena of {self.capacity} rows")

    def _check_held(self, slots: I64, locations: U64, action: str) -> None:
        self._check_slots(slots)
        wrong = (self._locations[slots] != locations) | ~self._taken[slots]
        if wrong.any():
            i = int(wrong.argmax())
            raise PlanError(f"{action} row {int(locations[i]):#x} in slot {int(slots[i])}, which does not hold it")
