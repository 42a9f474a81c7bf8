"""Rows in arenas that are moved as the plans of the batches say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor

from headrace.embed._threads import Threads
from headrace.embed.arena import Arena, PlanError
from headrace.embed.arena_rows import ArenaRows
from headrace.embed.arguments import check_integer
from headrace.embed.arrays import F32, I64, Bool, host_array
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.movement_check import check_movements
from headrace.embed.movers import Job, Mover
from headrace.embed.optimizers import UpdateRule
from headrace.embed.row_keys import RowKeys
from headrace.embed.sources import VectorSource
from headrace.embed.step_times import StepTimes
from headrace.formats.uninterrupted import uninterrupted
from headrace.ingest.step_plan import NEVER, FetchKeys, Movement, StepPlan


def arena_limits(capacity: SupportsIndex | Sequence[SupportsIndex | None] | None, num_groups: int) -> list[int | None]:
    """Most rows of each group's arena, from one number for all or one a group; None is what the plans ask for.

    TypeError for what is no integer, ValueError for less than 1 or for another number of groups.
    """
    one_for_all = isinstance(capacity, (str, bytes)) or not isinstance(capacity, Sequence)
    limits = [capacity] * num_groups if one_for_all else list(capacity)  # type: ignore[arg-type]
    if len(limits) != num_groups:
        raise ValueError(f"{len(limits)} capacities for {num_groups} groups")
    return [None if limit is None else check_integer("capacity", limit, least=1) for limit in limits]


class ArenaResidency:
    """Rows are copied between chunks and arenas as the plans say, by `mover`.

    State: (run, number of the last movement that was handed to the mover); movement 2t is the late one of step t, 2t +
    1 its ahead one. Legal next plans: the same one (what has not moved does), the next step of the run, or step 0 of
    a later run (dirty rows are flushed, the arenas start empty).

    A movement that is interrupted between its bookkeeping and its hand-over leaves the arenas *torn*: everything but
    `empty` and `close` is then a RuntimeError.

    `capacity` is the most rows that an arena may have, for each group; None is what the plans ask for. `make_rows`
    makes the memory of an arena of so many rows of a store.
    """

    def __init__(
        self,
        stores: Sequence[ChunkStore],
        capacity: Sequence[int | None],
        mover: Mover,
        make_rows: Callable[[int, ChunkStore], ArenaRows],
        times: StepTimes,
        threads: Threads | None = None,
    ) -> None:
        self._stores = stores
        self._limits = capacity
        self._mover = mover
        self._make_rows = make_rows
        self._times = times
        self._threads = threads
        self._arenas: list[Arena] = []
        self._run: int | None = None
        self._moved = -1
        self._torn: str | None = None
        self._emptied: int | None = None  # the run that was under way when the arenas were emptied

    def enter(self, plan: StepPlan, keys: Sequence[RowKeys]) -> None:
        """Both movements are handed over; the rows of the step have been fetched when this returns.

        The ahead movement touches no row of this step, and goes on while it runs. PlanError for a plan that does not
        fit: before any movement, if that can be told then; an ahead movement that does not fit what the late one leaves
        is refused when that is done, and done by the same plan as it should be.
        """
        with self._times.of("gather"):
            self._begin(plan)
            self._check_late(plan)
            is_new = self._moved < 2 * plan.step
            for arena, part, rows in zip(self._arenas, plan.groups, keys, strict=True):
                arena.check_gathered(part.slots, rows.locations, part.late if is_new else None)
        self._move_late(plan)
        self._move_ahead(plan)
        with self._times.of("wait"):
            self._mover.wait(2 * plan.step)

    def slots(self, plan: StepPlan, group: int) -> I64 | None:
        return plan.groups[group].slots

    def source(self, group: int, keys: RowKeys, slots: I64 | None) -> VectorSource:
        if slots is None:
            self.flush()
            return self._stores[group].source(*keys)
        return self._arenas[group].source(slots)

    def update(self, group: int, keys: RowKeys, slots: I64 | None, grads: Tensor, rule: UpdateRule) -> None:
        self.prepare_update(group, keys, slots, grads, rule)()

    def prepare_update(
        self, group: int, keys: RowKeys, slots: I64 | None, grads: Tensor, rule: UpdateRule, *, alone: bool = False
    ) -> Callable[[], None]:
        """Rows of an earlier batch may have left the arena since: those are updated in their chunks."""
        if slots is not None:
            return partial(self._arenas[group].update, slots, grads.contiguous(), rule)
        self._settle()
        slots, store = self._find(group, keys), self._stores[group]
        inside = slots >= 0
        there, here = slots[inside], _at(grads, inside).contiguous()
        others, left = keys.take(~inside), host_array(_at(grads, ~inside))
        store.make_room(others.locations)

        def update() -> None:
            if len(there):
                self._arenas[group].update(there, here, rule)
            if len(left):
                store.update(*others, left, rule, threads=self._threads)

        return update

    def write(self, group: int, keys: RowKeys, rows: F32) -> None:
        self._settle()
        slots = self._find(group, keys)
        inside = slots >= 0
        there, here = slots[inside], rows[inside]
        self._stores[group].write(keys.locations[~inside], rows[~inside])  # may be out of memory: then it wrote nothing
        if len(there):
            self._arenas[group].write(there, here)

    def _find(self, group: int, keys: RowKeys) -> I64:
        """Slots int64 [n] of rows, -1 where they are not in the arena."""
        if not self._arenas:
            return np.full(len(keys.locations), -1)
        return self._arenas[group].find(keys.locations)

    def skip(self, plan: StepPlan) -> None:
        """Waits for the movements before those of the plan, so that no more than two wait to be run."""
        self._begin(plan)
        self._check_late(plan)
        self._move_late(plan)
        self._move_ahead(plan)
        self._mover.wait(2 * plan.step - 1)

    def flush(self) -> None:
        self._settle()
        for arena in self._arenas:
            arena.flush()

    def rest(self) -> None:
        self._mover.rest()

    def empty(self) -> None:
        emptied = self._emptied if self._run is None else self._run
        try:
            self._drop()
        finally:
            self._emptied = emptied

    def _drop(self) -> None:
        self._arenas = []
        self._run = None
        self._moved = -1
        self._torn = None
        self._emptied = None
        self._mover.drop()  # last, since it may wait

    def close(self, timeout_s: float) -> None:
        self._mover.close(timeout_s)

    def _settle(self) -> None:
        """No row is on its way."""
        self._check_whole()
        self._mover.drain()
        for arena in self._arenas:
            arena.settle()

    def _begin(self, plan: StepPlan) -> None:
        """Refuses a plan out of turn; a new run begins with empty arenas."""
        self._check_whole()
        unfinished = self._moved % 2 == 0
        if plan.run == self._run and plan.step == self._moved // 2:
            return
        if self._run is not None and plan.run < self._run:  # runs are numbered in the order in which they begin
            raise PlanError(
                f"step {plan.step} of run {plan.run} came after run {self._run} had begun: its plan is over"
            )
        expected = 0 if plan.run != self._run else self._moved // 2 + (0 if unfinished else 1)
        if plan.step < expected:
            raise PlanError(f"step {plan.step} of run {plan.run} comes again, after step {self._moved // 2}")
        if plan.step > expected and plan.run == self._emptied:
            raise PlanError(
                f"step {plan.step} of run {plan.run} came after the arenas were emptied in the middle of the run "
                "(stage.load_state_dict, SavedRun.restore or stage.forget_rows): its plans are over. Iterate over the "
                "loader anew; loader.load_state_dict(loader.state_dict()) before makes it go on where it is"
            )
        if plan.step > expected:
            raise PlanError(
                f"step {plan.step} of run {plan.run} came, but step {expected} was not passed to the stage in training "
                "mode; call stage.skip(batch) for each batch that is not trained on, also if it was evaluated"
            )
        if plan.run != self._run:
            self._start_run(plan)
        self._check_capacity(plan)

    def _start_run(self, plan: StepPlan) -> None:
        for g, (part, limit) in enumerate(zip(plan.groups, self._limits, strict=True)):
            if limit is not None and part.capacity > limit:
                raise PlanError(
                    f"group {g}: the plan needs an arena of {part.capacity} rows, the stage was given capacity={limit}"
                )
        self.flush()
        self._drop()
        self._arenas = [
            Arena(part.capacity, store, rows=self._make_rows(part.capacity, store))
            for part, store in zip(plan.groups, self._stores, strict=True)
        ]
        self._run = plan.run

    def _check_capacity(self, plan: StepPlan) -> None:
        for g, (part, arena) in enumerate(zip(plan.groups, self._arenas, strict=True)):
            if part.capacity != arena.capacity:
                raise PlanError(f"group {g}: capacity changes from {arena.capacity} to {part.capacity} within a run")

    def _check_late(self, plan: StepPlan) -> None:
        """PlanError for a plan whose movements cannot be done, or whose late one does not fit."""
        check_movements(plan)
        self._check(2 * plan.step, [part.late for part in plan.groups])

    def _check(self, number: int, parts: Sequence[Movement]) -> None:
        if number > self._moved:
            for arena, part in zip(self._arenas, parts, strict=True):
                arena.check(part, number)

    def _move_late(self, plan: StepPlan) -> None:
        self._move(2 * plan.step, [part.late for part in plan.groups], plan.late_keys)

    def _move_ahead(self, plan: StepPlan) -> None:
        number, parts = 2 * plan.step + 1, [part.ahead for part in plan.groups]
        with self._times.of("gather"):
            self._check(number, parts)  # it is of what the late movement leaves
        self._move(number, parts, plan.ahead_keys)

    def _move(self, number: int, parts: Sequence[Movement], keys: Sequence[FetchKeys]) -> None:
        """Hand movement `number`, which was checked, to the mover, unless it was."""
        if number <= self._moved:
            return
        with uninterrupted(), self._whole_or_torn(number):
            with self._times.of("gather"):
                three = zip(self._arenas, parts, keys, strict=True)
                moves = [arena.begin(part, own) for arena, part, own in three if _moves_rows(part)]
            if moves:
                self._mover.submit(Job(number, moves, self._times))
            self._moved = number

    @contextmanager
    def _whole_or_torn(self, number: int) -> Iterator[None]:
        self._torn = f"movement {number} of run {self._run}"
        yield
        self._torn = None

    def _check_whole(self) -> None:
        self._mover.wait(NEVER)  # raises its error, if it has one
        if self._torn is not None:
            raise RuntimeError(
                f"{self._torn} was interrupted half-way: the rows of this run are not to be relied upon; restore the "
                "last checkpoint (headrace.load_run)"
            )


def _at(grads: Tensor, where: Bool) -> Tensor:
    """The rows of a tensor where `where` bool [n] is True."""
    return grads if where.all() else grads.index_select(0, torch.from_numpy(np.flatnonzero(where)).to(grads.device))


def _moves_rows(part: Movement) -> bool:
    return len(part.evict_slots) + len(part.fetch_slots) > 0
