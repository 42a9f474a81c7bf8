"""The planner fetches as few rows as any schedule that brings rows ahead as it must; by search over all schedules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def fetches(batches: list[frozenset[int]], capacity: int, window: int, *, overlap: bool = True) -> int:
    planner = WindowPlanner(window=window, capacity=capacity, overlap=overlap)
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


@st.composite
def scarce_streams(draw, share: float):
    """Batches of one or two rows of many, so that a share of the distinct rows holds a batch, and that capacity."""
    universe = 20 if share > 0.1 else (20 if share == 0.1 else 100)
    capacity = round(share * universe)
    popular = draw(st.integers(3, 8))
    row = st.one_of(st.integers(0, popular), st.integers(0, universe - 1))
    batch = st.frozensets(row, min_size=0, max_size=min(capacity, 3))
    return draw(st.lists(batch, min_size=2, max_size=12)), capacity


def fewest_of_all(batches: list[frozenset[int]], capacity: int, *, ahead: bool) -> int:
    """Like :func:`fewest_fetches` for any rows: the contents reached are searched step by step (only rows of the stream
    matter, and a row enters only when a step or the duty asks for it)."""
    costs = {frozenset(): 0}
    for t, batch in enumerate(batches):
        costs = _after(costs, batch, capacity, keep=batch, most=len(batch))
        if ahead and t + 1 < len(batches):
            following = batches[t + 1]
            most = min(len(following), capacity - len(batch - following))
            costs = _after(costs, following, capacity, keep=batch, most=most)
    return min(costs.values())


def _after(costs, wanted: frozenset[int], capacity: int, *, keep: frozenset[int], most: int):
    """All contents with `most` of the wanted rows, the kept ones, and any that fit of what was there."""
    found: dict[frozenset[int], int] = {}
    for arena, cost in costs.items():
        for chosen in itertools.combinations(sorted(wanted), most):
            must = keep & arena | frozenset(chosen)
            if not keep <= must | keep or len(must) > capacity:
                continue
            rest = sorted(arena - must - (wanted if most < len(wanted) else frozenset()))
            for others in itertools.combinations(rest, min(len(rest), capacity - len(must))):
                after = must | frozenset(others)
                price = cost + len(after - arena)
                found[after] = min(price, found.get(after, price))
    return found


@pytest.mark.parametrize("share", [0.02, 0.1, 0.25])
def test_fetches_are_the_fewest_where_room_is_scarce(share: float) -> None:
    """Capacities of 2, 10 and 25 % of the distinct rows: with the duty to be early, and without it Belady's optimum."""

    @given(case=scarce_streams(share))
    @settings(max_examples=120, deadline=None, database=None)
    def check(case) -> None:
        batches, capacity = case
        window = len(batches)
        assert fetches(batches, capacity, window) == fewest_of_all(batches, capacity, ahead=True)
        late = fetches(batches, capacity, window, overlap=False)
        assert late == fewest_of_all(batches, capacity, ahead=False)
        assert late <= fetches(batches, capacity, window)

    check()
