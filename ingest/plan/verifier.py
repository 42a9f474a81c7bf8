"""Proves plans: replays them, step by step, on an adversarial memory, and lists whatever is wrong.

It knows nothing of how plans are made (no victim order), only what they must guarantee, and shares no code with the
planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from headrace.ingest.plan._arena_model import ArenaModel, first_of_each, within
from headrace.ingest.plan.violations import Kind, PlanViolationError, Violation
from headrace.ingest.step_plan import I64, U64, Bool, FetchKeys, Movement, StepPlan


@dataclass(frozen=True)
class _Previous:
    """What the last step said of this one."""

    unique: U64
    slots: I64
    urgent: Bool
    ahead: Movement
    ahead_keys: FetchKeys


class PlanVerifier:
    """Checks the plans of one run, one step after the other: ``check`` each, then ``finish``.

    `capacity` and `r_rows` are rows for each row layout; `horizon` is the number of moves after which the executor
    guarantees that a write-back has landed. Memory: O(slots that are named + rows written back within the horizon + a
    batch).

    `row_bytes`, bytes of a row of each layout, must be the same at every step; None takes those of the first plan.

    What concerns two steps (urgent, rows brought ahead and their keys) is reported with the later one's check, under
    the earlier step.
    """

    def __init__(
        self,
        *,
        capacity: Sequence[int],
        horizon: int,
        r_rows: Sequence[int] | None = None,
        row_bytes: Sequence[int] | None = None,
    ) -> None:
        r_rows = r_rows if r_rows is not None else [0] * len(capacity)
        if len(r_rows) != len(capacity):
            raise ValueError(f"{len(capacity)} capacities, {len(r_rows)} r_rows")
        if row_bytes is not None and len(row_bytes) != len(capacity):
            raise ValueError(f"{len(capacity)} capacities, {len(row_bytes)} row_bytes")
        if horizon < 0:
            raise ValueError(f"horizon {horizon} is negative")
        self._arenas = [
            ArenaModel(capacity=c, r_rows=r, horizon=horizon) for c, r in zip(capacity, r_rows, strict=True)
        ]
        self._previous: list[_Previous | None] = [None] * len(capacity)
        self._found: list[Violation] = []
        self._next_step = 0
        self._run: int | None = None
        self._window: int | None = None
        self._row_bytes = None if row_bytes is None else tuple(row_bytes)
        self.stale_reads = 0
        self.violations = 0

    def check(
        self,
        plan: StepPlan,
        unique_locations: Sequence[U64],
        unique_keys: Sequence[FetchKeys] | None = None,
    ) -> list[Violation]:
        """All that is wrong with the next plan; `unique_locations[g]` uint64 [U] are the rows that the step uses.

        `unique_keys[g]` are their keys, same order: with them the keys of what is fetched for this step are checked,
        `late_keys` of this plan and `ahead_keys` of the one before. A replayed step, or one whose arrays do not fit
        together, is reported and otherwise ignored.
        """
        self._found = []
        if self._in_sequence(plan):
            if self._well_formed(plan, unique_locations, unique_keys):
                for g, unique in enumerate(unique_locations):
                    _GroupCheck(self, g, plan, unique, None if unique_keys is None else unique_keys[g]).run()
            else:
                self._forget_last_step()
        self.violations += len(self._found)
        return self._found

    def assert_valid(
        self,
        plan: StepPlan,
        unique_locations: Sequence[U64],
        unique_keys: Sequence[FetchKeys] | None = None,
    ) -> None:
        """``check``, raising PlanViolationError if anything is wrong."""
        _raise(self.check(plan, unique_locations, unique_keys))

    def finish(self, total_steps: int) -> list[Violation]:
        """What is wrong at the end of a stream of `total_steps` batches."""
        self._found = []
        if self._next_step != total_steps:
            self._add(Kind.LOST_TAIL, self._next_step, -1, f"{self._next_step} of {total_steps} steps were planned")
        for g, previous in enumerate(self._previous):
            if previous is None:
                continue
            step = self._next_step - 1
            if len(previous.ahead.fetch_slots):
                self._add(Kind.LOST_TAIL, step, g, "rows fetched ahead for a step that does not exist")
            if self._window and previous.urgent.any():
                self._add(Kind.URGENT, step, g, "there is no next step")
        self.violations += len(self._found)
        return self._found

    def assert_finished(self, total_steps: int) -> None:
        """``finish``, raising PlanViolationError if anything is wrong."""
        _raise(self.finish(total_steps))

    @property
    def tracked_rows(self) -> int:
        """Rows remembered now, over all row layouts."""
        return sum(arena.tracked_rows for arena in self._arenas)

    def _add(self, kind: Kind, step: int, group: int, detail: str) -> None:
        self._found.append(Violation(kind, step, group, detail=detail))

    def _in_sequence(self, plan: StepPlan) -> bool:
        if self._run is None:
            self._run, self._window = plan.run, plan.window
        if (plan.run, plan.window) != (self._run, self._window):
            self._add(Kind.LAYOUT, plan.step, -1, f"run and window were {self._run}, {self._window}")
        expected = self._next_step
        if plan.step != expected:
            self._add(Kind.STEP_ORDER, plan.step, -1, f"step {expected} was expected")
        if plan.step > expected:
            self._forget_last_step()
        self._next_step = max(expected, plan.step + 1)
        return plan.step >= expected

    def _forget_last_step(self) -> None:
        """The step that comes is not the one that the last plan spoke of."""
        self._previous = [None] * len(self._arenas)

    def _well_formed(
        self, plan: StepPlan, unique_locations: Sequence[U64], unique_keys: Sequence[FetchKeys] | None
    ) -> bool:
        counts = {len(plan.groups), len(plan.late_keys), len(plan.ahead_keys), len(plan.row_bytes)}
        counts |= {len(unique_locations), len(unique_locations if unique_keys is None else unique_keys)}
        if counts != {len(self._arenas)}:
            self._add(Kind.LAYOUT, plan.step, -1, f"{len(self._arenas)} row layouts were expected")
            return False
        self._row_bytes = self._row_bytes or plan.row_bytes
        if plan.row_bytes != self._row_bytes:
            self._add(Kind.LAYOUT, plan.step, -1, f"row_bytes {plan.row_bytes}, not {self._row_bytes}")
        before = len(self._found)
        for g, group in enumerate(plan.groups):
            if unique_keys is not None and _key_lengths(unique_keys[g]) != {len(unique_locations[g])}:
                self._add(Kind.UNIQUE_COUNT, plan.step, g, f"not one key for each of {len(unique_locations[g])} rows")
            if not len(group.slots) == len(group.hot) == len(group.urgent) == len(unique_locations[g]):
                rows = f"{len(group.slots)} slots for {len(unique_locations[g])} unique rows"
                self._add(Kind.UNIQUE_COUNT, plan.step, g, rows)
            for movement, keys in ((group.late, plan.late_keys[g]), (group.ahead, plan.ahead_keys[g])):
                if not _lengths_agree(movement, keys):
                    self._add(Kind.MALFORMED, plan.step, g, "lengths differ within a movement")
        return len(self._found) == before


class _GroupCheck:
    """One row layout at one step."""

    def __init__(
        self, verifier: PlanVerifier, index: int, plan: StepPlan, unique: U64, unique_keys: FetchKeys | None
    ) -> None:
        self._verifier, self._index, self._group, self._unique = verifier, index, plan.groups[index], unique
        self._unique_keys, self._late_keys, self._ahead_keys = (
            unique_keys,
            plan.late_keys[index],
            plan.ahead_keys[index],
        )
        self._arena = verifier._arenas[index]
        self._step, self._window = plan.step, plan.window
        self._used = frozenset(unique.tolist())

    def run(self) -> None:
        group, step = self._group, self._step
        self._layout()
        self._what_the_last_step_said()
        self._count("hits", group.hits, self._rows_here_before())
        self._keeps(group.late, step)
        self._fetch_unique(group.late, self._late_keys, step)
        self._arena.move(2 * step, group.late, self._report)
        self._gather()
        self._ahead()
        self._count("resident", group.resident, len(self._arena.slot_of))
        self._verifier._previous[self._index] = _Previous(
            self._unique, group.slots, group.urgent, group.ahead, self._ahead_keys
        )

    def _report(self, kind: Kind, rows: U64, slots: I64, detail: str = "", step: int | None = None) -> None:
        step = self._step if step is None else step
        self._verifier._found += [
            Violation(kind, step, self._index, row, slot, detail)
            for row, slot in zip(rows.tolist(), slots.tolist(), strict=True)
        ]

    def _layout(self) -> None:
        said, known = (self._group.capacity, self._group.r_rows), (self._arena.capacity, self._arena.r_rows)
        if said != known:
            self._verifier._add(Kind.LAYOUT, self._step, self._index, f"(capacity, r_rows) {said}, not {known}")

    def _count(self, what: str, said: int, found: int) -> None:
        if said != found:
            self._verifier._add(Kind.COUNT, self._step, self._index, f"{what} {said}, found {found}")

    def _rows_here_before(self) -> int:
        """Rows of this step in the arena for an earlier one: not just brought by the last `ahead`."""
        slots = self._arena.slots_of(self._unique)
        slots = slots[slots >= 0]
        return int((~self._arena.were_fetched_at(slots, 2 * self._step - 1)).sum())

    def _what_the_last_step_said(self) -> None:
        last = self._verifier._previous[self._index]
        if last is None:
            return
        self._fetch_unique(last.ahead, last.ahead_keys, self._step - 1)
        self._keeps(last.ahead, self._step - 1)
        if self._window == 0:
            return
        wrong = last.urgent != self._are_used(last.unique)
        self._report(Kind.URGENT, last.unique[wrong], last.slots[wrong], step=self._step - 1)

    def _are_used(self, rows: U64) -> Bool:
        """Which of the rows are used by this step."""
        return np.fromiter(map(self._used.__contains__, rows.tolist()), np.bool_, len(rows))

    def _keeps(self, movement: Movement, step: int) -> None:
        needed = self._are_used(movement.evict_locations)
        self._report(Kind.EVICTS_NEEDED, movement.evict_locations[needed], movement.evict_slots[needed], step=step)

    def _fetch_unique(self, movement: Movement, keys: FetchKeys, step: int) -> None:
        """What is fetched for this step is the unique row that it says, by location and by key."""
        position, rows, slots = movement.fetch_unique, movement.fetch_locations, movement.fetch_slots
        inside = within(position, len(self._unique))
        at = position[inside]
        wrong = ~inside
        wrong[inside] = self._unique[at] != rows[inside]
        self._report(Kind.FETCH_UNIQUE, rows[wrong], slots[wrong], step=step)
        known = self._unique_keys
        if known is None:
            return
        wrong = np.zeros(len(rows), np.bool_)
        for name in _KEY_FIELDS:
            wrong[inside] |= getattr(known, name)[at] != getattr(keys, name)[inside]
        self._report(Kind.KEYS, rows[wrong], slots[wrong], step=step)

    def _gather(self) -> None:
        group, unique, slots = self._group, self._unique, self._group.slots
        inside = within(slots, self._arena.capacity)
        self._report(Kind.SLOT_RANGE, unique[~inside], slots[~inside])
        again = ~first_of_each(slots)
        self._report(Kind.DUPLICATE_SLOTS, unique[again], slots[again])
        misplaced = (slots < self._arena.r_rows) != group.hot
        self._report(Kind.R_REGION, unique[misplaced], slots[misplaced])
        good = inside & ~again
        self._verifier.stale_reads += self._arena.gather_and_update(unique[good], slots[good], self._report)

    def _ahead(self) -> None:
        """Runs while the step does: what the step gathers is neither read nor written by it."""
        ahead, kind = self._group.ahead, Kind.AHEAD_TOUCHES_GATHERED
        if self._window == 0 and not self._group.urgent.all():
            self._verifier._add(Kind.URGENT, self._step, self._index, "all are urgent when the window is 0")
        if self._window == 0 and (len(ahead.fetch_slots) or len(ahead.evict_slots)):
            self._verifier._add(Kind.LAYOUT, self._step, self._index, "nothing is ahead when the window is 0")
        read, written = self._are_gathered(ahead.evict_slots), self._are_gathered(ahead.fetch_slots)
        self._report(kind, ahead.evict_locations[read], ahead.evict_slots[read], "evicted")
        self._report(kind, ahead.fetch_locations[written], ahead.fetch_slots[written], "fetched into")
        self._keeps(ahead, self._step)
        self._arena.spoil(ahead.evict_slots[read])
        self._arena.move(2 * self._step + 1, ahead, self._report)

    def _are_gathered(self, slots: I64) -> Bool:
        """Which of the slots are read and updated by this step."""
        capacity = self._arena.capacity
        gathered: Bool = np.isin(slots, self._group.slots) & within(slots, capacity)
        return gathered


_KEY_FIELDS = tuple(field.name for field in fields(FetchKeys))


def _key_lengths(keys: FetchKeys) -> set[int]:
    return {len(getattr(keys, name)) for name in _KEY_FIELDS}


def _lengths_agree(movement: Movement, keys: FetchKeys) -> bool:
    evict = {len(movement.evict_locations), len(movement.evict_slots)}
    fetch = {len(getattr(movement, field.name)) for field in fields(movement) if not field.name.startswith("evict")}
    return len(evict) == 1 and len(fetch | _key_lengths(keys)) == 1


def _raise(violations: list[Violation]) -> None:
    if violations:
        raise PlanViolationError(violations)
