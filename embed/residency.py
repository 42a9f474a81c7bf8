"""Where the trainer's rows are between steps: in the chunks (direct), or in arenas moved by plan.

Both give the same parameters, bit for bit: an arena row is a copy of the chunk row, updated by the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsIndex

import numpy as np

from headrace.embed._rows import RowSource
from headrace.embed._threads import Threads
from headrace.embed.arena import Arena, PlanError
from headrace.embed.arguments import check_integer
from headrace.embed.arrays import F32, I64
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.optimizers import UpdateRule
from headrace.embed.row_keys import RowKeys
from headrace.ingest.step_plan import StepPlan


def arena_limits(capacity: SupportsIndex | Sequence[SupportsIndex | None] | None, num_groups: int) -> list[int | None]:
    """Most rows of each group's arena, from one number for all or one a group; None is what the plans ask for.

    TypeError for what is no integer, ValueError for less than 1 or for another number of groups.
    """
    one_for_all = isinstance(capacity, (str, bytes)) or not isinstance(capacity, Sequence)
    limits = [capacity] * num_groups if one_for_all else list(capacity)  # type: ignore[arg-type]
    if len(limits) != num_groups:
        raise ValueError(f"{len(limits)} capacities for {num_groups} groups")
    return [None if limit is None else check_integer("capacity", limit, least=1) for limit in limits]


class Residency(Protocol):
    """What the stage asks of the place where rows live; `group` is the number of a row layout."""

    def enter(self, plan: StepPlan, keys: Sequence[RowKeys]) -> None:
        """Do the movements that a training batch's plan asks for; `keys` are its unique rows, one entry a group."""

    def slots(self, plan: StepPlan, group: int) -> I64 | None:
        """Where the plan that was entered last has put the unique rows of its batch, if in slots."""

    def source(self, group: int, keys: RowKeys, slots: I64 | None) -> RowSource:
        """Where to find the newest vectors of rows: of `slots`, if a plan that was entered last has put them there."""

    def update(self, group: int, keys: RowKeys, slots: I64 | None, grads: F32, rule: UpdateRule) -> None:
        """One optimizer step on rows, with grads float32 [n, dim]; `slots` as in :meth:`source`."""

    def write(self, group: int, keys: RowKeys, rows: F32) -> None:
        """Replace rows by `rows` float32 [n, dim + state]."""

    def skip(self, plan: StepPlan) -> None:
        """Do the movements of a batch that is not trained on."""

    def flush(self) -> None:
        """Make the chunks hold the newest of every row; changes no residency."""

    def drop(self) -> None:
        """Forget what is resident, without writing it back."""


class DirectResidency:
    """Rows are read and updated in their chunks."""

    def __init__(self, stores: Sequence[ChunkStore], threads: Threads | None = None) -> None:
        self._stores = stores
        self._threads = threads

    def enter(self, plan: StepPlan, keys: Sequence[RowKeys]) -> None:
        """Nothing moves."""

    def slots(self, plan: StepPlan, group: int) -> I64 | None:
        return None

    def source(self, group: int, keys: RowKeys, slots: I64 | None) -> RowSource:
        return self._stores[group].source(*keys)

    def update(self, group: int, keys: RowKeys, slots: I64 | None, grads: F32, rule: UpdateRule) -> None:
        self._stores[group].update(*keys, grads, rule, threads=self._threads)

    def write(self, group: int, keys: RowKeys, rows: F32) -> None:
        self._stores[group].write(keys.locations, rows)

    def skip(self, plan: StepPlan) -> None:
        """Nothing moves."""

    def flush(self) -> None:
        """The chunks always hold the newest."""

    def drop(self) -> None:
        """Nothing is resident outside the chunks."""


class ArenaResidency:
    """Rows are copied between chunks and arenas as the plans say.

    State: (run, step) of the last plan whose movements were done. Legal next plans: the same one (nothing moves), the
    next step of the run, or step 0 of a later run (dirty rows are flushed, the arenas start empty).

    `capacity` is the most rows that an arena may have, for each group; None is what the plans ask for.
    """

    def __init__(
        self, stores: Sequence[ChunkStore], capacity: Sequence[int | None], threads: Threads | None = None
    ) -> None:
        self._stores = stores
        self._limits = capacity
        self._threads = threads
        self._arenas: list[Arena] = []
        self._run: int | None = None
        self._step = -1

    def enter(self, plan: StepPlan, keys: Sequence[RowKeys]) -> None:
        """Both movements: the ahead one touches no row of this step, and a device would overlap it with the step."""
        fresh = self._enter(plan)
        if fresh:
            self._move_late(plan)
        for arena, part, rows in zip(self._arenas, plan.groups, keys, strict=True):
            arena.check_gathered(part.slots, rows.locations)
        if fresh:
            self._move_ahead(plan)

    def slots(self, plan: StepPlan, group: int) -> I64 | None:
        return plan.groups[group].slots

    def source(self, group: int, keys: RowKeys, slots: I64 | None) -> RowSource:
        if slots is None:
            self.flush()
            return self._stores[group].source(*keys)
        return self._arenas[group].source(slots)

    def update(self, group: int, keys: RowKeys, slots: I64 | None, grads: F32, rule: UpdateRule) -> None:
        """Rows of an earlier batch may have left the arena since: those are updated in their chunks."""
        if slots is not None:
            self._arenas[group].update(slots, grads, rule)
            return
        slots = self._find(group, keys)
        inside = slots >= 0
        if inside.any():
            self._arenas[group].update(slots[inside], grads[inside], rule)
        self._stores[group].update(*keys.take(~inside), grads[~inside], rule, threads=self._threads)

    def write(self, group: int, keys: RowKeys, rows: F32) -> None:
        slots = self._find(group, keys)
        inside = slots >= 0
        if inside.any():
            self._arenas[group].write(slots[inside], rows[inside])
        self._stores[group].write(keys.locations[~inside], rows[~inside])

    def _find(self, group: int, keys: RowKeys) -> I64:
        """Slots int64 [n] of rows, -1 where they are not in the arena."""
        if not self._arenas:
            return np.full(len(keys.locations), -1)
        return self._arenas[group].find(keys.locations)

    def skip(self, plan: StepPlan) -> None:
        if self._enter(plan):
            self._move_late(plan)
            self._move_ahead(plan)

    def flush(self) -> None:
        for arena in self._arenas:
            arena.flush()

    def drop(self) -> None:
        self._arenas = []
        self._run = None
        self._step = -1

    def _enter(self, plan: StepPlan) -> bool:
        """Whether the plan's movements are still to be done; refuses a plan out of turn."""
        if plan.run == self._run and plan.step == self._step:
            return False
        if self._run is not None and plan.run < self._run:  # runs are numbered in the order in which they begin
            raise PlanError(
                f"step {plan.step} of run {plan.run} came after run {self._run} had begun: its plan is over"
            )
        expected = self._step + 1 if plan.run == self._run else 0
        if plan.step < expected:
            raise PlanError(f"step {plan.step} of run {plan.run} comes again, after step {self._step}")
        if plan.step > expected:
            raise PlanError(
                f"step {plan.step} of run {plan.run} came, but step {expected} was not passed to the stage; call "
                "stage.skip(batch) for each batch that is not trained on"
            )
        if plan.run != self._run:
            self._start_run(plan)
        self._check_capacity(plan)
        return True

    def _start_run(self, plan: StepPlan) -> None:
        for g, (part, limit) in enumerate(zip(plan.groups, self._limits, strict=True)):
            if limit is not None and part.capacity > limit:
                raise PlanError(
                    f"group {g}: the plan needs an arena of {part.capacity} rows, the stage was given capacity={limit}"
                )
        self.flush()
        self.drop()
        self._arenas = [Arena(p.capacity, s, self._threads) for p, s in zip(plan.groups, self._stores, strict=True)]
        self._run = plan.run

    def _check_capacity(self, plan: StepPlan) -> None:
        for g, (part, arena) in enumerate(zip(plan.groups, self._arenas, strict=True)):
            if part.capacity != arena.capacity:
                raise PlanError(f"group {g}: capacity changes from {arena.capacity} to {part.capacity} within a run")

    def _move_late(self, plan: StepPlan) -> None:
        for arena, part, keys in zip(self._arenas, plan.groups, plan.late_keys, strict=True):
            arena.move(part.late, keys, 2 * plan.step)

    def _move_ahead(self, plan: StepPlan) -> None:
        for arena, part, keys in zip(self._arenas, plan.groups, plan.ahead_keys, strict=True):
            arena.move(part.ahead, keys, 2 * plan.step + 1)
        self._step = plan.step
