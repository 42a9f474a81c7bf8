"""Plans run on a memory with values in it, on which every copy is as late as the plan permits."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from headrace.ingest.plan.offline import plan_batches
from headrace.ingest.plan.planner import WindowPlanner, write_back_horizon
from headrace.ingest.step_plan import NEVER, GroupPlan, Movement


class LateMemory:
    """A row's value is the number of its updates. A write-back lands when it is waited for, or at the horizon."""

    def __init__(self, capacity: int, horizon: int, *, obey_waits: bool = True) -> None:
        self.arena: list[int | None] = [None] * capacity
        self.chunks: Counter[int] = Counter()
        self.under_way: dict[tuple[int, int], int] = {}  # (move, row) -> value
        self.horizon = horizon
        self.obey_waits = obey_waits

    def run(self, number: int, movement: Movement) -> None:
        for move, row in list(self.under_way):
            if number - move > self.horizon:
                self.chunks[row] = self.under_way.pop((move, row))
        for row, slot in zip(movement.evict_locations.tolist(), movement.evict_slots.tolist(), strict=True):
            value = self.arena[slot]
            assert value is not None
            self.under_way[number, row] = value
        for row, slot, wait in zip(
            movement.fetch_locations.tolist(), movement.fetch_slots.tolist(), movement.fetch_wait.tolist(), strict=True
        ):
            if wait != NEVER and self.obey_waits:
                self.chunks[row] = self.under_way.pop((wait, row))
            self.arena[slot] = self.chunks[row]

    def step(self, slots: list[int]) -> list[int | None]:
        values = [self.arena[slot] for slot in slots]
        for slot, value in zip(slots, values, strict=True):
            assert value is not None
            self.arena[slot] = value + 1
        return values


def run(batches: list[np.ndarray], plans: list[GroupPlan], memory: LateMemory) -> int:
    """Number of rows that were gathered with a wrong value."""
    truth: Counter[int] = Counter()
    wrong = 0
    for t, (batch, plan) in enumerate(zip(batches, plans, strict=True)):
        memory.run(2 * t, plan.late)
        before_ahead = [memory.arena[slot] for slot in plan.slots]
        memory.run(2 * t + 1, plan.ahead)  # while the step runs: it must not change what the step reads or writes
        assert [memory.arena[slot] for slot in plan.slots] == before_ahead
        values = memory.step(plan.slots.tolist())
        wrong += sum(value != truth[row] for row, value in zip(batch.tolist(), values, strict=True))
        truth.update(batch.tolist())
    return wrong


@pytest.mark.parametrize("window", [0, 1, 2, 7, 60])
@pytest.mark.parametrize("slack", [0, 3, 40])
def test_every_step_sees_all_updates_before_it(window: int, slack: int) -> None:
    """P85: an update of step t is visible at t + 1 and at every later use, whatever was evicted in between."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        weight = 1 / np.arange(1, 31) ** 0.5
        batches = [
            rng.choice(30, rng.integers(1, 8), replace=False, p=weight / weight.sum()).astype(np.uint64)
            for _ in range(60)
        ]
        capacity = max(len(b) for b in batches) + slack
        plans = list(plan_batches(batches, WindowPlanner(window=window, capacity=capacity)))
        assert run(batches, plans, LateMemory(capacity, write_back_horizon(window))) == 0
        if slack == 0 and window < 60:  # the memory does punish a plan whose waits are not obeyed
            careless = LateMemory(capacity, write_back_horizon(window), obey_waits=False)
            assert run(batches, plans, careless) > 0
