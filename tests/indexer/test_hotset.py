from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.indexer import hotset
from headrace.indexer.hotset import Coverage, PresenceCounter, choose_hot, coverage, touched_by_any

shares = st.lists(st.floats(0, 1), max_size=8)


def expected_cost(presence: list[float], hot: tuple[bool, ...], w: int, early: float, late: float, ar: float) -> float:
    """Cost a step and rank, term by term: a cold row is late if another step before touched it (chance P)."""
    total = 0.0
    for q, is_hot in zip(presence, hot, strict=True):
        p = 1 - (1 - q) ** w
        total += p * ar if is_hot else q * (p * late + (1 - p) * early)
    return total


@settings(max_examples=50, deadline=None)
@given(shares, st.integers(1, 64), st.floats(0.1, 2), st.floats(0, 3), st.floats(0.01, 3))
def test_threshold_is_the_cheapest_of_all_subsets(
    q: list[float], w: int, early: float, extra: float, ar: float
) -> None:
    q = [round(x, 3) for x in q]
    hot = choose_hot(np.array(q), world_size=w, c_early=early, c_late=early + extra, c_ar=ar)
    best = min(
        expected_cost(q, tuple(bool(mask >> i & 1) for i in range(len(q))), w, early, early + extra, ar)
        for mask in range(1 << len(q))
    )
    ours = expected_cost(q, tuple(hot.tolist()), w, early, early + extra, ar)
    assert ours == pytest.approx(best, rel=1e-9, abs=1e-12)


@given(shares, st.integers(1, 64), st.floats(0, 2), st.floats(0, 3), st.floats(0, 3))
def test_hot_rows_are_those_above_a_threshold(q: list[float], w: int, early: float, extra: float, ar: float) -> None:
    presence = np.sort(np.array(q, np.float64))
    # steps far apart: the left side is monotone, not its rounding
    presence = np.unique(np.round(presence, 3))
    hot = choose_hot(presence, world_size=w, c_early=early, c_late=early + extra, c_ar=ar + 1e-9)
    assert (np.diff(hot.astype(int)) >= 0).all()


def test_rule_by_hand() -> None:
    # one rank: P = q, so the left side is q (late - early) + early
    q = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    assert choose_hot(q, world_size=1, c_early=1, c_late=3, c_ar=2).tolist() == [False, False, False, True, True]
    # two ranks, q = 1/2: P = 3/4, left = 1/2 * 2 + 1 * 2/3
    half = np.array([0.5])
    assert choose_hot(half, world_size=2, c_early=1, c_late=3, c_ar=1.66).tolist() == [True]
    assert choose_hot(half, world_size=2, c_early=1, c_late=3, c_ar=1.67).tolist() == [False]
    assert not choose_hot(q, world_size=4, c_early=1, c_late=1, c_ar=5).any()  # R may come out empty
    assert choose_hot(q, world_size=4, c_early=0, c_late=0, c_ar=0).tolist() == [False] * 5
    assert choose_hot(np.empty(0), world_size=4, c_early=1, c_late=1, c_ar=0).tolist() == []
    assert hotset.choose_hot_reducing_all(q, c_a2a=2, c_ar=1).tolist() == [False, False, False, True, True]


def test_rare_rows_keep_their_precision() -> None:
    q = np.array([1e-300, 1e-18, 1e-9, 0.5, 1.0])
    np.testing.assert_allclose(touched_by_any(q, 32), [3.2e-299, 3.2e-17, 3.2e-8, 1 - 2.0**-32, 1.0], rtol=1e-6)
    # q / P -> 1 / W
    assert choose_hot(q[:1], world_size=32, c_early=32, c_late=32, c_ar=0.999).tolist() == [True]
    assert choose_hot(q[:1], world_size=32, c_early=32, c_late=32, c_ar=1.001).tolist() == [False]


@pytest.mark.parametrize(
    ("q", "change"),
    [
        ([1.1], {}),
        ([-0.1], {}),
        ([math.nan], {}),
        ([0.5], {"world_size": 0}),
        ([0.5], {"c_ar": math.inf}),
        ([0.5], {"c_early": -1.0}),
        ([0.5], {"c_early": 3.0}),
    ],
)
def test_senseless_numbers_are_refused(q: list[float], change: dict) -> None:
    with pytest.raises(ValueError):
        choose_hot(np.array(q), **{"world_size": 2, "c_early": 1.0, "c_late": 2.0, "c_ar": 1.0, **change})


def test_coverage_counts_accesses_and_unique_rows_apart() -> None:
    hot = np.array([True, False, False])
    # one row has 90 of 100 accesses, but is 10 of the 20 unique rows of the batches
    found = coverage(hot, accesses=np.array([90, 5, 5]), batches=np.array([10, 5, 5]))
    assert found == Coverage(accesses=0.9, unique_rows=0.5)
    empty = np.zeros(0, np.int64)
    assert coverage(empty.astype(bool), accesses=empty, batches=empty) == Coverage(0.0, 0.0)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), max_size=15), max_size=12), st.integers(1, 12), st.booleans())
def test_presence_equals_a_plain_count(raw: list[list[int]], max_batches: int, small_lots: bool) -> None:
    counter = PresenceCounter(max_batches)
    batches: dict[int, int] = {}
    accesses: dict[int, int] = {}
    for number, ids in enumerate(raw):
        unique, query = np.unique(np.array(ids, np.uint64) << np.uint64(40), return_inverse=True)
        assert counter.add(unique[::-1], (len(unique) - 1 - query).astype(np.uint32)) == (number < max_batches)
        if small_lots:
            counter._merge()
        if number < max_batches:
            for i in set(ids):
                batches[i << 40] = batches.get(i << 40, 0) + 1
            for i in ids:
                accesses[i << 40] = accesses.get(i << 40, 0) + 1
    counted = min(len(raw), max_batches)
    assert (counter.num_batches, counter.full) == (counted, counted == max_batches)
    assert dict(zip(counter.locations().tolist(), counter.batches().tolist(), strict=True)) == batches
    assert dict(zip(counter.locations().tolist(), counter.accesses().tolist(), strict=True)) == accesses
    assert counter.locations().tolist() == sorted(batches)
    assert counter.presence().tolist() == [batches[x] / max(1, counted) for x in sorted(batches)]
    ranked = sorted(batches, key=lambda x: (-batches[x], x))
    for k in (0, 1, 3, 100):
        assert counter.top(k).tolist() == ranked[:k]


def test_counter_refuses_what_are_not_unique_rows() -> None:
    counter = PresenceCounter(2)
    with pytest.raises(ValueError, match="unique rows"):
        counter.add(np.array([3, 3], np.uint64))
    with pytest.raises(ValueError, match="ABSENT"):
        counter.add(np.array([(1 << 64) - 1], np.uint64))
    with pytest.raises(ValueError, match="query id is 2"):
        counter.add(np.array([3, 4], np.uint64), np.array([0, 2], np.uint32))
    assert counter.num_batches == 0
    with pytest.raises(ValueError, match="max_batches"):
        PresenceCounter(0)
    with pytest.raises(TypeError, match="max_batches"):
        PresenceCounter(1.5)  # type: ignore[arg-type]


def test_counts_stay_exact_and_integer() -> None:
    counter = PresenceCounter(3)
    counter.add(np.array([9, 4], np.uint64), np.array([0, 0, 1], np.uint32))
    counter._merge()
    counter._counts[1] = [(1 << 52) + 1, 7]
    counter.add(np.array([4], np.uint64), np.array([0], np.uint32))
    assert counter.accesses().tolist() == [(1 << 52) + 2, 7]
    assert counter.batches().tolist() == [2, 1]
    assert (counter.accesses().dtype, counter.batches().dtype) == (np.int64, np.int64)
