from __future__ import annotations

from dataclasses import astuple, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.indexer.indexed import ABSENT
from headrace.ingest.plan.capacity import CapacityError
from headrace.ingest.plan.offline import plan_batches, step_plans
from headrace.ingest.plan.planner import WindowPlanner, write_back_horizon
from headrace.ingest.step_plan import NEVER, GroupPlan

WINDOWS = [0, 1, 2, 7, 50, 1000]


def rows(*locations: int) -> np.ndarray:
    return np.array(locations, np.uint64)


def make(native: bool, batches, *, window, capacity, r_rows=0, hot=None) -> list[GroupPlan]:
    planner = WindowPlanner(window=window, capacity=capacity, r_rows=r_rows, native=native)
    if hot is not None:
        planner.set_hot(hot)
    return list(plan_batches(batches, planner))


def needed(batches, hot=(), r_rows=0) -> tuple[int, int]:
    cold = [set(b.tolist()) - set(int(h) for h in hot) for b in batches]
    most = max((len(c) for c in cold), default=0)
    pairs = max((len(a | b) for a, b in zip(cold, cold[1:], strict=False)), default=most)
    return most + r_rows, max(most, pairs) + r_rows


def assert_same(left: GroupPlan, right: GroupPlan, where: str = "") -> None:
    for field in fields(GroupPlan):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if field.name in ("late", "ahead"):
            for name, x, y in zip(field.name, astuple(a), astuple(b), strict=False):
                assert x.dtype == y.dtype, (where, name)
            for part in fields(a):
                x, y = getattr(a, part.name), getattr(b, part.name)
                np.testing.assert_array_equal(x, y, err_msg=f"{where} {field.name}.{part.name}")
        elif isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b, err_msg=f"{where} {field.name}")
        else:
            assert a == b, (where, field.name)


@st.composite
def streams(draw):
    """Batches of few rows (so that reuse, revival and eviction are frequent), hot rows, a capacity from the least on."""
    universe = draw(st.integers(1, 24))
    steps = draw(st.integers(0, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    skew = draw(st.sampled_from([0.0, 0.7, 1.5]))
    rng = np.random.default_rng(seed)
    # Locations of all magnitudes, 0 and huge ones among them, in no particular order.
    locations = rng.permutation(
        np.unique(rng.integers(0, 2**64 - 1, universe, np.uint64) >> rng.integers(0, 64, dtype=np.uint64))
    )
    weight = 1.0 / np.arange(1, len(locations) + 1) ** skew
    batches = []
    for _ in range(steps):
        size = int(rng.integers(0, min(len(locations), 9) + 1))
        batches.append(rng.choice(locations, size, replace=False, p=weight / weight.sum()))
    hot = rng.permutation(locations)[: draw(st.integers(0, min(3, len(locations))))]
    r_rows = len(hot) + draw(st.integers(0, 1))
    least, enough = needed(batches, hot, r_rows)
    capacity = draw(st.sampled_from([least, least + 1, (least + enough) // 2, enough, enough + 2, 100 + r_rows]))
    return batches, hot, r_rows, max(capacity, r_rows)


@given(stream=streams(), window=st.sampled_from(WINDOWS))
@settings(max_examples=400, deadline=None)
def test_native_equals_twin(stream, window):
    batches, hot, r_rows, capacity = stream
    native, twin = (WindowPlanner(window=window, capacity=capacity, r_rows=r_rows, native=n) for n in (True, False))
    outcome = []
    for planner in (native, twin):
        planner.set_hot(hot)
        outcome.append(plan_batches(batches, planner))
    count = 0
    for step, (a, b) in enumerate(zip(*outcome, strict=True)):
        assert_same(a, b, f"step {step}")
        assert native.stats() == twin.stats()
        assert native.current_window_sizes == twin.current_window_sizes
        count += 1
    assert count == len(batches)
    if window >= 1 and batches and capacity >= needed(batches, hot, r_rows)[1]:
        plans = make(True, batches, window=window, capacity=capacity, r_rows=r_rows, hot=hot)
        assert all(len(plan.late.fetch_slots) == 0 for plan in plans[1:])  # invariant 5
