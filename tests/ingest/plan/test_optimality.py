"""The planner fetches as few rows as any schedule that brings rows ahead as it must; by search over all schedules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headrace.ingest.plan.offline import plan_batches
from headrace.ingest.plan.planner import WindowPlanner

UNIVERSE = 6


def fewest_fetches(batches: list[frozenset[int]], capacity: int, *, ahead: bool) -> int:
    """Fewest fetches over all contents of the arena that allow the steps.

    At step t the arena holds D_t. With `ahead`, at the end of it, it holds D_t and as many rows of D_t+1 as fit beside
    D_t; without, nothing is asked of it before the boundary. Any row may come or leave in any movement.
    """
    arenas = [frozenset(c) for n in range(capacity + 1) for c in itertools.combinations(range(UNIVERSE), n)]
    costs = {frozenset(): 0}
    for t, batch in enumerate(batches):
        costs = _cheapest(costs, [a for a in arenas if batch <= a])
        if ahead and t + 1 < len(batches):
            following = batches[t + 1]
            most = min(len(following), capacity - len(batch - following))
            costs = _cheapest(costs, [a for a in arenas if batch <= a and len(following & a) == most])
    return min(costs.values())


def _cheapest(costs: dict[frozenset[int], int], arenas: list[frozenset[int]]) -> dict[frozenset[int], int]:
    return {after: min(cost + len(after - before) for before, cost in costs.items()) for after in arenas}


def fetches(batches: list[frozenset[int]], capacity: int, window: int) -> int:
    planner = WindowPlanner(window=window, capacity=capacity)
    plans = plan_batches([np.array(sorted(b), np.uint64) for b in batches], planner)
    return sum(len(p.late.fetch_slots) + len(p.ahead.fetch_slots) for p in plans)


def random_case(rng: np.random.Generator) -> tuple[list[frozenset[int]], int]:
    steps = int(rng.integers(2, 8))
    batches = [frozenset(rng.choice(UNIVERSE, rng.integers(0, 4), replace=False).tolist()) for _ in range(steps)]
    return batches, int(rng.integers(max(len(b) for b in batches), UNIVERSE + 1))


@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_with_the_same_duty_fetches_less(seed: int) -> None:
    """The window covers the stream, whatever the capacity, from the least with which the steps can run."""
    rng = np.random.default_rng(seed)
    for _ in range(60):
        batches, capacity = random_case(rng)
        assert fetches(batches, capacity, window=len(batches)) == fewest_fetches(batches, capacity, ahead=True)


def test_fetching_only_late_can_need_fewer() -> None:
    """What it costs to be early: row 3 must leave for row 2, since rows 0 and 1 are in use until the boundary."""
    batches = [frozenset(b) for b in ([3], [0, 1], [2], [3])]
    assert fetches(batches, 3, window=4) == fewest_fetches(batches, 3, ahead=True) == 5
    assert fewest_fetches(batches, 3, ahead=False) == 4


@pytest.mark.parametrize("seed", range(2))
def test_never_fewer_than_the_lower_bound_and_equal_to_it_with_room(seed: int) -> None:
    """Late-only optimum <= ours for every window; with room for every row, each is fetched once."""
    rng = np.random.default_rng(100 + seed)
    for _ in range(40):
        batches, capacity = random_case(rng)
        least = fewest_fetches(batches, capacity, ahead=False)
        assert all(fetches(batches, capacity, window) >= least for window in range(len(batches) + 1))
        assert fetches(batches, UNIVERSE, window=1) == len(frozenset().union(*batches))


def test_the_search_itself_finds_belady() -> None:
    """Single-row steps and a cache of two: 0 1 2 0 1 costs 4 (row 1 leaves for row 2), where LRU pays 5."""
    batches = [frozenset([row]) for row in (0, 1, 2, 0, 1)]
    assert fewest_fetches(batches, 2, ahead=False) == 4
    assert fetches(batches, 2, window=0) == 5
