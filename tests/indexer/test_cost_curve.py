from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.indexer.cost_curve import RowCosts, cost_curve, measured_costs
from headrace.indexer.hotset import PresenceCounter, choose_hot
from headrace.ingest.plan.offline import plan_batches
from headrace.ingest.plan.planner import WindowPlanner

COSTS = [RowCosts(1.0, 1.25, 1.0), RowCosts(1.0, 3.0, 1.2), RowCosts(0.0, 2.0, 0.5), RowCosts(1.0, 1.5, 5.0)]


@given(
    q=st.lists(st.floats(0, 1), max_size=8),
    costs=st.sampled_from(COSTS),
    world_size=st.sampled_from([1, 2, 16]),
)
@settings(max_examples=150, deadline=None)
def test_no_set_of_rows_costs_less(q: list[float], costs: RowCosts, world_size: int) -> None:
    """Brute force over all subsets, with the cost of each row written out again: the curve's lowest point is it."""
    curve = cost_curve(np.array(q, np.float64), costs, world_size=world_size)

    def cost(hot: tuple[bool, ...]) -> float:
        total = 0.0
        for presence, inside in zip(q, hot, strict=True):
            p = 1 - (1 - presence) ** world_size
            request = presence * ((1 - p) * costs.c_early + p * costs.c_late)
            total += p * costs.c_ar if inside else request
        return total

    every = [cost(hot) for hot in itertools.product([False, True], repeat=len(q))]
    assert curve.cost[curve.optimum] == pytest.approx(min(every), abs=1e-9)
    assert curve.cost[0] == pytest.approx(every[0], abs=1e-9)
    assert curve.cost[-1] == pytest.approx(every[-1], abs=1e-9)
    for r in range(len(q) + 1):
        within = curve.cost[r] <= 1.01 * curve.cost[curve.optimum]
        assert within == (curve.band_low <= r <= curve.band_high)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("world_size", [1, 4, 32])
def test_the_optimum_is_the_threshold_rule(costs: RowCosts, world_size: int) -> None:
    q = np.random.default_rng(0).random(500) ** 4
    curve = cost_curve(q, costs, world_size=world_size)
    hot = choose_hot(q, world_size=world_size, c_early=costs.c_early, c_late=costs.c_late, c_ar=costs.c_ar)
    assert set(curve.order[: curve.optimum].tolist()) == set(np.flatnonzero(hot).tolist())
    falls, rises = np.diff(curve.cost[: curve.optimum + 1]), np.diff(curve.cost[curve.optimum :])
    assert (falls <= 1e-12).all()
    assert (rises >= -1e-12).all()


@pytest.mark.parametrize(("c_step", "optimum"), [(0.0, 2), (0.9, 2), (1.0, 0), (5.0, 0)])
def test_an_r_that_saves_less_than_having_one_costs_is_not_best(c_step: float, optimum: int) -> None:
    """Two rows of every batch save 0.5 each; the third, of every second one, would cost 0.125 more in R."""
    q = np.array([1.0, 1.0, 0.5])
    curve = cost_curve(q, RowCosts(c_early=1.0, c_late=2.0, c_ar=1.5, c_step=c_step), world_size=2)
    outside, inside = 0.5 * (0.25 * 1.0 + 0.75 * 2.0), 0.75 * 1.5
    expected = [4.0 + outside, 3.5 + outside + c_step, 3.0 + outside + c_step, 3.0 + inside + c_step]
    assert curve.cost.tolist() == pytest.approx(expected)
    assert curve.optimum == optimum
    assert all(curve.cost[r] <= 1.01 * curve.cost[optimum] for r in range(curve.band_low, curve.band_high + 1))


def test_the_predicted_cost_is_that_of_actual_plans() -> None:
    """Predicted from 100 batches; counted in the plans of 100 others: bytes of cold rows, late ones at twice the price,
    and of hot rows touched."""
    rng = np.random.default_rng(3)
    weight = 1 / np.arange(1, 3001) ** 1.1
    batches = [np.unique(rng.choice(3000, 400, p=weight / weight.sum())).astype(np.uint64) for _ in range(200)]
    counter = PresenceCounter()
    for batch in batches[:100]:
        counter.add(batch)
    costs = RowCosts(c_early=64.0, c_late=128.0, c_ar=48.0)
    curve = cost_curve(counter.presence(), costs, world_size=1)
    predicted, counted = [], []
    for r in (0, 5, 20, 50, 100, 200, 400, 800):
        hot = counter.locations()[curve.order[:r]]
        planner = WindowPlanner(window=5, capacity=3000, r_rows=r)
        planner.set_hot(hot)
        total, urgent_rows = 0.0, np.empty(0, np.uint64)
        for batch, plan in zip(batches[100:], plan_batches(batches[100:], planner), strict=True):
            cold = batch[~plan.hot]
            late = np.isin(cold, urgent_rows).sum()  # the step before touched it
            total += late * costs.c_late + (len(cold) - late) * costs.c_early + plan.hot.sum() * costs.c_ar
            urgent_rows = batch[plan.urgent]
        predicted.append(curve.cost[r])
        counted.append(total / 100)
    assert np.corrcoef(predicted, counted)[0, 1] ** 2 > 0.99
    assert np.allclose(predicted, counted, rtol=0.05)


def test_wrong_costs_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot cost less"):
        cost_curve(np.array([0.5]), RowCosts(2.0, 1.0, 1.0), world_size=1)
    with pytest.raises(ValueError, match="not negative"):
        cost_curve(np.array([0.5]), RowCosts(-1.0, 1.0, 1.0), world_size=1)
    with pytest.raises(ValueError, match="c_step"):
        cost_curve(np.array([0.5]), RowCosts(1.0, 1.0, 1.0, -1.0), world_size=1)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        cost_curve(np.array([1.5]), RowCosts(1.0, 1.0, 1.0), world_size=1)


def test_no_rows_cost_nothing() -> None:
    curve = cost_curve(np.empty(0), COSTS[0], world_size=2)
    assert (curve.cost.tolist(), curve.optimum, curve.band_low, curve.band_high) == ([0.0], 0, 0, 0)


def test_measured_costs_are_times_a_row() -> None:
    costs = measured_costs(row_bytes=64, rows=1 << 12, rounds=3)
    assert 0 < costs.c_early <= costs.c_late < 1e-3
    assert 0 < costs.c_ar < 1e-3
