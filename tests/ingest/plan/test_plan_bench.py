from __future__ import annotations

import numpy as np
import pytest

from headrace.ingest.plan._planner_numpy import NumpyPlanner
from headrace.ingest.plan.bench import hit_rate_curve, measure
from headrace.ingest.plan.offline import plan_batches
from headrace.ingest.plan.planner import WindowPlanner


def stream(seed: int, steps: int = 60, size: int = 40, universe: int = 400) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, universe + 1)
    locations = rng.permutation(1 << 20)[:universe].astype(np.uint64)
    return [rng.choice(locations, size, replace=False, p=weight / weight.sum()) for _ in range(steps)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capacity", [40, 75, 120, 500])
def test_the_numpy_planner_does_the_same_work(seed: int, capacity: int) -> None:
    """Same evictions and fetches, in the same order, and the same slots: its time can be compared."""
    batches = stream(seed)
    other = NumpyPlanner(batches, window=7, capacity=capacity)
    for plan in plan_batches(batches, WindowPlanner(window=7, capacity=capacity)):
        slots = other.step()
        for i, move in enumerate((plan.late, plan.ahead)):
            if i < len(other.fetched):
                assert other.locations[other.evicted[i]].tolist() == move.evict_locations.tolist()
                assert other.locations[other.fetched[i]].tolist() == move.fetch_locations.tolist()
        assert slots.tolist() == plan.slots.tolist()


def test_the_report_is_whole_and_its_shares_are_shares() -> None:
    report = measure(stream(1), window=10, capacity_share=0.5, warm_up=5, curve=True)
    assert report["steps"] == 45
    assert 0 < report["hit_rate"] < 1
    assert 0.9 < report["early_share"] <= 1
    assert 0 <= report["overlap_cost"] <= report["belady_gap"] < 1
    assert report["peak_rows"] == report["capacity"]
    assert 0 < report["plan_min_ms"] <= report["plan_ms"]
    rates = [point["hit_rate"] for point in report["curve"]]
    assert rates[0] is None
    assert report["curve"][0]["rows_needed"] == 40
    known = [rate for rate in rates if rate is not None]
    assert len(known) >= 2
    assert known == sorted(known)


@pytest.mark.parametrize(("apart", "neighbours"), [(1, 8.0), (2, 4.0), (8, 1.0), (1000, 1.0)])
def test_the_report_tells_how_many_of_eight_neighbours_are_in_use(apart: int, neighbours: float) -> None:
    batches = [np.arange(64, dtype=np.uint64) * np.uint64(apart)] * 6
    report = measure(batches, window=3, capacity_share=1.0, warm_up=1, numpy=False)
    assert report["rows_in_eight"] == neighbours


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="more than window"):
        measure(stream(1, steps=10), window=8, capacity_share=0.5, warm_up=2)


def test_a_capacity_of_all_rows_fetches_each_once() -> None:
    (point,) = hit_rate_curve([np.array([1, 2], np.uint64)] * 9, window=2, distinct=2, warm_up=1, shares=(1.0,))
    assert point["hit_rate"] == 1.0
