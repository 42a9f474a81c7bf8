"""Where the trainer's rows are between steps: in the chunks (direct), or in arenas moved by plan.

Both give the same parameters, bit for bit: an arena row is a copy of the chunk row, updated by the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsIndex

import numpy as np

from headrace.embed.arena import Arena, PlanError
from headrace.embed.arguments import check_integer
from headrace.embed.arrays import F32
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.optimizers import UpdateRule
from headrace.ingest.batch import BatchGroup
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
    """What the stage asks of the place where rows live; one entry a group in every sequence."""

    def gather(self, plan: StepPlan, groups: Sequence[BatchGroup]) -> list[F32]:
        """Vectors float32 [U, dim] of a training batch's unique rows, after the movements that its plan asks for."""

    def update(
        self, plan: StepPlan, groups: Sequence[BatchGroup], grads: Sequence[F32 | None], rules: Sequence[UpdateRule]
    ) -> None:
        """One optimizer step on the rows of the batch gathered last; a group without gradients is not touched."""

    def skip(self, plan: StepPlan) -> None:
        """Do the movements of a batch that is not trained on."""

    def flush(self) -> None:
        """Make the chunks hold the newest of every row; changes no residency."""

    def drop(self) -> None:
        """Forget what is resident, without writing it back."""


def read_rows(store: ChunkStore, group: BatchGroup, out: F32) -> F32:
    """`out`, filled from the chunks with the unique rows of a batch's group; unknown keys as they would start."""
    store.read(
        group.locations.numpy(), group.unique_ids.numpy(), group.unique_tables.numpy(), group.missing.numpy(), out
    )
    return out


class DirectResidency:
    """Rows are read and updated in their chunks."""

    def __init__(self, stores: Sequence[ChunkStore]) -> None:
        self._stores = stores

    def gather(self, plan: StepPlan, groups: Sequence[BatchGroup]) -> list[F32]:
        return [
            read_rows(store, group, np.empty((group.num_unique, store.dim), np.float32))
            for store, group in zip(self._stores, groups, strict=True)
        ]

    def update(
        self, plan: StepPlan, groups: Sequence[BatchGroup], grads: Sequence[F32 | None], rules: Sequence[UpdateRule]
    ) -> None:
        for store, group, grad, rule in zip(self._stores, groups, grads, rules, strict=True):
            if grad is not None:
                store.update(
                    group.locations.numpy(),
                    group.unique_ids.numpy(),
                    group.unique_tables.numpy(),
                    group.missing.numpy(),
                    grad,
                    rule,
                )

    def skip(self, plan: StepPlan) -> None:
        """Nothing moves."""

    def flush(self) -> None:
        """The chunks always hold the newest."""

    def drop(self) -> None:
        """Nothing is resident outside the chunks."""


class ArenaResidency:
    """Rows are copied between chunks and arenas as the plans say.

    State: (run, step) of the last plan whose movements were done. Legal next plans: the same one (nothing moves), the
    next step of the run, or step 0 of another run (dirty rows are flushed, the arenas start empty).

    `capacity` is the most rows that an arena may have, for each group; None is what the plans ask for.
    """

    def __init__(self, stores: Sequence[ChunkStore], capacity: Sequence[int | None]) -> None:
        self._stores = stores
        self._limits = capacity
        self._arenas: list[Arena] = []
        self._run: int | None = None
        self._step = -1

    def gather(self, plan: StepPlan, groups: Sequence[BatchGroup]) -> list[F32]:
        fresh = self._enter(plan)
        if fresh:
            self._move_late(plan)
        gathered = []
        for arena, store, group, part in zip(self._arenas, self._stores, groups, plan.groups, strict=True):
            out = np.empty((group.num_unique, store.dim), np.float32)
            arena.gather(part.slots, group.locations.numpy(), out)
            gathered.append(out)
        if fresh:
            self._move_ahead(plan)
        return gathered

    def update(
        self, plan: StepPlan, groups: Sequence[BatchGroup], grads: Sequence[F32 | None], rules: Sequence[UpdateRule]
    ) -> None:
        for arena, part, grad, rule in zip(self._arenas, plan.groups, grads, rules, strict=True):
            if grad is not None:
                arena.update(part.slots, grad, rule)

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
        self._arenas = [Arena(p.capacity, s) for p, s in zip(plan.groups, self._stores, strict=True)]
        self._run = plan.run

    def _check_capacity(self, plan: StepPlan) -> None:
        for g, (part, arena) in enumerate(zip(plan.groups, self._arenas, strict=True)):
            if part.capacity != arena.capacity:
                raise PlanError(f"group {g}: capacity changes from {arena.capacity} to {part.capacity} within a run")

    def _move_late(self, plan: StepPlan) -> None:
        for arena, part, keys in zip(self._arenas, plan.groups, plan.late_keys, strict=True):
            arena.move(part.late, keys, 2 * plan.step)

    def _move_ahead(self, plan: StepPlan) -> None:
        """After the gather, so that a device can overlap it with the step; it touches no row of this step."""
        for arena, part, keys in zip(self._arenas, plan.groups, plan.ahead_keys, strict=True):
            arena.move(part.ahead, keys, 2 * plan.step + 1)
        self._step = plan.step
