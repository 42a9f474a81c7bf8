"""An arena and its chunks in which every copy happens as late as a plan permits: the verifier's adversary.

Only how far a copy of a row is behind matters, so versions are counted backwards: the *lag* of a copy is the number of
the row's updates that it lacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import repeat

import numpy as np

from headrace.ingest.plan.violations import Kind
from headrace.ingest.step_plan import I64, NEVER, U64, Bool, Movement

GARBAGE = 1 << 40
"""Lag of a copy that holds another row's numbers."""

_BY_SLOT = ("taken", "row", "lag", "chunk_lag", "fetched_at", "vacated_at", "vacated_by")

Report = Callable[..., None]
"""report(kind, locations, slots, detail)."""


class ArenaModel:
    """One row layout. Move numbers only grow; `horizon` moves after its own a write-back has landed whatever the waits.

    For each slot: the row that it holds, the lag of the slot and of the row's chunk, the moves of its last fetch and
    last eviction. For each row written back within the horizon: the move, the chunk's lag before it lands, and after
    (nearly always 0: only others are kept).
    """

    def __init__(self, *, capacity: int, r_rows: int, horizon: int) -> None:
        self.capacity, self.r_rows, self.horizon = capacity, r_rows, horizon
        self.slot_of: dict[int, int] = {}
        self.taken = np.zeros(0, np.bool_)  # these by slot, as far as slots were named; see _make_room
        self.row = np.zeros(0, np.uint64)
        self.lag = np.zeros(0, np.int64)
        self.chunk_lag = np.zeros(0, np.int64)
        self.fetched_at = np.zeros(0, np.int64)  # + 1, so that no memory is touched for what never was
        self.vacated_at = np.zeros(0, np.int64)  # + 1
        self.vacated_by = np.zeros(0, np.uint64)
        self._pending: dict[int, int] = {}  # row -> move of its write-back
        self._spoiled: dict[int, int] = {}  # row -> lag of the chunk once that write-back has landed, if not 0
        self._write_backs: deque[tuple[int, list[int], I64]] = deque()  # move, rows, lag of the chunk before

    def slots_of(self, rows: U64) -> I64:
        """Slot of each row, -1 where it is not resident."""
        return np.fromiter(map(self.slot_of.get, rows.tolist(), repeat(-1)), np.int64, len(rows))

    def move(self, number: int, movement: Movement, report: Report) -> None:
        """Evictions, then fetches. What is impossible is reported and left out."""
        self._make_room(movement.evict_slots)
        self._make_room(movement.fetch_slots)
        self._land(number)
        self._evict(number, movement.evict_locations, movement.evict_slots, report)
        self._fetch(number, movement, report)

    def gather_and_update(self, rows: U64, slots: I64, report: Report) -> int:
        """Step's reads, then its updates in place; returns the number of stale reads. Slots are within the arena."""
        self._make_room(slots)
        right = self.taken[slots] & (self.row[slots] == rows)
        if not right.all():
            absent = self.slots_of(rows) < 0
            report(Kind.NOT_RESIDENT, rows[absent], slots[absent])
            report(Kind.WRONG_ROW, rows[~absent & ~right], slots[~absent & ~right])
        rows, slots = rows[right], slots[right]
        stale = self.lag[slots] != 0
        if stale.any():
            report(Kind.STALE_READ, rows[stale], slots[stale])
            self.lag[slots] = 0  # once told, each fault is told once
        self.chunk_lag[slots] += 1
        return int(stale.sum())

    def spoil(self, slots: I64) -> None:
        """These slots are read before the running step has updated them."""
        self._make_room(slots)
        self.lag[slots] += 1

    def were_fetched_at(self, slots: I64, number: int) -> Bool:
        """Which of the rows in these slots move `number` has fetched."""
        found: Bool = self.fetched_at[slots] == number + 1
        return found

    def _make_room(self, slots: I64) -> None:
        """A capacity is a claim (it may be a forged one): memory is for the slots that are named."""
        inside = slots[within(slots, self.capacity)]
        named = int(inside.max()) + 1 if len(inside) else 0
        if named <= len(self.taken):
            return
        size = min(self.capacity, max(named, 2 * len(self.taken)))
        for name in _BY_SLOT:
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def _evict(self, number: int, rows: U64, slots: I64, report: Report) -> None:
        inside = within(slots, self.capacity)
        report(Kind.SLOT_RANGE, rows[~inside], slots[~inside])
        rows, slots = rows[inside], slots[inside]
        held = self.taken[slots] & (self.row[slots] == rows) & first_of_each(slots)
        report(Kind.EVICTS_ABSENT, rows[~held], slots[~held])
        rows, slots = rows[held], slots[held]
        pinned = slots < self.r_rows
        report(Kind.R_REGION, rows[pinned], slots[pinned], "evicted")
        gone = rows.tolist()
        self._pending.update(dict.fromkeys(gone, number))
        self._write_backs.append((number, gone, self.chunk_lag[slots]))
        behind = self.lag[slots] != 0
        self._spoiled.update(zip(rows[behind].tolist(), self.lag[slots[behind]].tolist(), strict=True))
        for row in gone:
            del self.slot_of[row]
        self.taken[slots] = False
        self.vacated_at[slots] = number + 1
        self.vacated_by[slots] = rows

    def _fetch(self, number: int, movement: Movement, report: Report) -> None:
        rows, slots = movement.fetch_locations, movement.fetch_slots
        inside = within(slots, self.capacity)
        report(Kind.SLOT_RANGE, rows[~inside], slots[~inside])
        double = (self.slots_of(rows) >= 0) | ~first_of_each(rows)
        report(Kind.DOUBLE_RESIDENCY, rows[double], slots[double])
        conflict = inside & ~first_of_each(slots)
        conflict[inside] |= self.taken[slots[inside]]
        report(Kind.SLOT_CONFLICT, rows[conflict], slots[conflict])
        good = inside & ~double & ~conflict
        rows, slots = rows[good], slots[good]
        self._overwrite(number, rows, slots, movement.slot_wait[good], report)
        self.lag[slots] = self.chunk_lag[slots] = self._read_chunks(rows, slots, movement.fetch_wait[good], report)
        self.taken[slots] = True
        self.row[slots] = rows
        self.fetched_at[slots] = number + 1
        self.slot_of.update(zip(rows.tolist(), slots.tolist(), strict=True))

    def _overwrite(self, number: int, rows: U64, slots: I64, waits: I64, report: Report) -> None:
        """An eviction that nobody waits for reads its slot only now: it writes the new row's numbers back."""
        due = self.vacated_at[slots] - 1
        missing = (waits != due) & (due != NEVER)
        if (waits != due).any():
            false = (waits != due) & (waits != NEVER)
            report(Kind.MISSING_SLOT_WAIT, rows[missing], slots[missing])
            report(Kind.FALSE_WAIT, rows[false], slots[false], "slot_wait")
        for victim, move in zip(self.vacated_by[slots[missing]].tolist(), due[missing].tolist(), strict=True):
            if self._pending.get(victim) == move:
                self._spoiled[victim] = GARBAGE

    def _read_chunks(self, rows: U64, slots: I64, waits: I64, report: Report) -> I64:
        """Lag of what is read: a write-back under way has landed only if it is waited for."""
        due = np.fromiter(map(self._pending.pop, rows.tolist(), repeat(NEVER)), np.int64, len(rows))
        lag = np.zeros(len(rows), np.int64)
        if self._spoiled:
            lag[:] = np.fromiter(map(self._spoiled.pop, rows.tolist(), repeat(0)), np.int64, len(rows))
        wrong = waits != due
        if wrong.any():
            missing, false = wrong & (due != NEVER), wrong & (waits != NEVER)
            report(Kind.MISSING_FETCH_WAIT, rows[missing], slots[missing])
            report(Kind.FALSE_WAIT, rows[false], slots[false], "fetch_wait")
            for i in np.flatnonzero(missing).tolist():
                lag[i] = self._lag_before(int(rows[i]), int(due[i]))
        return lag

    def _lag_before(self, row: int, move: int) -> int:
        """Lag of the row's chunk until the write-back of that move lands."""
        rows, lags = next((rows, lags) for number, rows, lags in self._write_backs if number == move)
        return int(lags[rows.index(row)])

    def _land(self, number: int) -> None:
        """Forget the write-backs that have landed by the horizon."""
        while self._write_backs and number - self._write_backs[0][0] > self.horizon:
            move, rows, _ = self._write_backs.popleft()
            for row in rows:
                if self._pending.get(row) == move:
                    del self._pending[row]
                    self._spoiled.pop(row, None)

    @property
    def tracked_rows(self) -> int:
        """Rows that the model remembers."""
        return len(self.slot_of) + len(self._pending)


def within(slots: I64, capacity: int) -> Bool:
    return (slots >= 0) & (slots < capacity)


def first_of_each(values: U64 | I64) -> Bool:
    """True at the first occurrence of each value."""
    ordered = np.sort(values)
    if (ordered[1:] != ordered[:-1]).all():
        return np.ones(len(values), np.bool_)
    first = np.zeros(len(values), np.bool_)
    first[np.unique(values, return_index=True)[1]] = True
    return first
