"""The device's array of rows for one row layout, moved by plan and gathered by slot.

A movement has two halves. `check` and `begin` do its bookkeeping at once, so that a plan that does not fit is refused
whole and the arena knows what will be where. The :class:`Move` that `begin` gives copies the rows, then or later, here
or in another thread; whoever runs moves keeps their order (see `movers.py`).
"""

from __future__ import annotations

from torch import Tensor

from headrace.embed._threads import Threads
from headrace.embed.arena_rows import ArenaRows, HostRows, Staged
from headrace.embed.arrays import F32, I64, U64
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.copy_lane import Mark
from headrace.embed.optimizers import UpdateRule
from headrace.embed.slot_table import HeldRows, PlanError, SlotTable
from headrace.embed.sources import VectorSource
from headrace.ingest.step_plan import NEVER, FetchKeys, Movement

__all__ = ["Arena", "Move", "PlanError"]


class Move:
    """The copies of one movement of one arena: `vacate`, then `fetch`, and at any time after `vacate`, once, `land`.

    `last_wait` is the number of the last write-back that must have landed before `fetch`, NEVER if there is none; it
    may be the move's own.
    """

    def __init__(
        self, rows: ArenaRows, store: ChunkStore, leaving: HeldRows, movement: Movement, keys: FetchKeys
    ) -> None:
        self.last_wait = int(movement.fetch_wait.max()) if len(movement.fetch_wait) else NEVER
        self._rows = rows
        self._store = store
        self._leaving = leaving
        self._movement = movement
        self._keys = keys
        self._staged: Staged | None = None
        self._after = rows.mark()
        self._fetched: Mark = None

    @property
    def num_fetched(self) -> int:
        return len(self._movement.fetch_slots)

    @property
    def num_written_back(self) -> int:
        return len(self._leaving.slots)

    def vacate(self) -> None:
        """Copy the rows that leave out of their slots."""
        if len(self._leaving.slots):
            self._staged = self._rows.take_out(self._leaving.slots, self._after)

    def fetch(self) -> None:
        """Bring the rows that enter into their slots."""
        if self.num_fetched:
            part = self._movement
            self._fetched = self._rows.bring_in(
                self._store, part.fetch_locations, self._keys, part.fetch_slots, self._after
            )

    def land(self) -> None:
        """Write the rows that left to their chunks."""
        if self._staged is not None:
            self._store.write(self._leaving.locations, self._staged.array())
            self._staged = None

    def hold(self) -> None:
        """What the trainer asks for next finds the rows that `fetch` brought."""
        self._rows.hold(self._fetched)


class Arena:
    """`capacity` rows of `store`'s width by slot, in `rows` (the host's memory, if not given)."""

    def __init__(
        self, capacity: int, store: ChunkStore, threads: Threads | None = None, *, rows: ArenaRows | None = None
    ) -> None:
        self._table = SlotTable(capacity)
        self._store = store
        self._rows = rows or HostRows(capacity, store.dim, store.width, threads)

    @property
    def capacity(self) -> int:
        return self._table.capacity

    @property
    def num_resident(self) -> int:
        return self._table.num_taken

    def check(self, movement: Movement, number: int) -> None:
        """PlanError for a movement that does not fit; `number` is 2t for the late one of step t, 2t + 1 for its ahead
        one."""
        self._table.check(movement, number)

    def begin(self, movement: Movement, keys: FetchKeys) -> Move:
        """From now on the arena holds what it holds after the movement; the move that makes it so must be run.

        :meth:`check` comes before.
        """
        leaving = self._table.move(movement)
        return Move(self._rows, self._store, leaving, movement, keys)

    def check_gathered(self, slots: I64, locations: U64, first: Movement | None = None) -> None:
        """PlanError unless slots[i] holds the row of locations[i]; or will hold it after the movement `first`, which
        was checked and is not done."""
        self._table.check_gathered(slots, locations, first)

    def source(self, slots: I64) -> VectorSource:
        """The vectors in `slots`."""
        return self._rows.source(slots)

    def find(self, locations: U64) -> I64:
        """Slots int64 [n] that hold the rows of locations uint64 [n], -1 where none does."""
        return self._table.find(locations)

    def update(self, slots: I64, grads: Tensor, rule: UpdateRule) -> None:
        """One optimizer step on the rows in `slots` (unique), grads float32 [n, dim] where the rows are."""
        self._table.mark_dirty(slots)  # first: it may be out of memory, and writing back what did not change is no harm
        self._rows.update(slots, grads, rule)

    def write(self, slots: I64, rows: F32) -> None:
        """Replace the rows in `slots` (unique) by rows float32 [n, dim + state]."""
        self._table.mark_dirty(slots)
        self._rows.write(slots, rows)

    def settle(self) -> None:
        """What the trainer asks for next comes after every move that was run."""
        self._rows.settle()

    def flush(self) -> None:
        """Write every dirty row back; rows stay where they are. Every move must have landed."""
        dirty = self._table.dirty()
        if len(dirty.slots):
            self._store.write(dirty.locations, self._rows.take_out(dirty.slots, self._rows.mark()).array())
            self._table.mark_clean(dirty.slots)
