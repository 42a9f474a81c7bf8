from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.generate.popularity import (
    EXACT_RANKS,
    Law,
    pmf_law,
    power_integral,
    power_inverse,
    zipf_mandelbrot_law,
)


def exact_probabilities(cardinality: int, exponent: float, shift: float, p_head: float) -> np.ndarray:
    """float64 [cardinality]: the law summed term by term."""
    weights = (np.arange(1, cardinality, dtype=np.float64) + shift) ** -exponent
    return np.concatenate([[p_head], (1 - p_head) * weights / weights.sum()])


def chi_square_ok(law: Law, expected: np.ndarray, draws: int, seed: int) -> bool:
    """Whether the draws fit `expected` at 5 standard deviations; neighbouring ranks are pooled to some 40 draws."""
    counts = np.bincount(law.draw(np.random.default_rng(seed), draws), minlength=len(expected))
    assert len(counts) == len(expected)
    pool = np.floor((np.cumsum(expected) - expected) * draws / 40)
    edges = np.flatnonzero(np.diff(pool[pool < pool[-1] - 1], prepend=-1))  # the last pool takes what is left
    observed, wanted = np.add.reduceat(counts, edges), np.add.reduceat(expected, edges) * draws
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(edges) - 1
    return bool(abs(statistic - freedom) < 5 * np.sqrt(2 * freedom) + 5)


CASES = [(2, 1.3, 0.0, 0.2), (305, 2.6, 1.3, 0.67), (5_000, 1.0, 0.0, 0.05), (30_000, 0.94, 775.6, 0.0)]


@pytest.mark.parametrize(("cardinality", "exponent", "shift", "p_head"), CASES)
@pytest.mark.parametrize("exact_ranks", [64, EXACT_RANKS])
def test_draws_follow_the_exact_law(cardinality, exponent, shift, p_head, exact_ranks):
    law = zipf_mandelbrot_law(
        cardinality=cardinality, exponent=exponent, shift=shift, p_head=p_head, exact_ranks=exact_ranks
    )
    assert law.has_tail == (cardinality - 1 > exact_ranks)
    expected = exact_probabilities(cardinality, exponent, shift, p_head)
    assert chi_square_ok(law, expected, 400_000, seed=7)


def test_the_chi_square_check_can_fail():
    law = zipf_mandelbrot_law(cardinality=5_000, exponent=1.05, shift=0.0, p_head=0.05)
    assert not chi_square_ok(law, exact_probabilities(5_000, 1.0, 0.0, 0.05), 400_000, seed=7)


@pytest.mark.parametrize("exponent", [0.91, 1.0, 1.0 + 1e-13, 1.0 + 1e-9, 1.02, 2.25])
@pytest.mark.parametrize("shift", [0.0, 62.0, 12_825.0])
def test_the_tail_quantile_is_the_inverse_of_the_exact_cumulative_sum(exponent, shift):
    cardinality = 400_000
    law = zipf_mandelbrot_law(cardinality=cardinality, exponent=exponent, shift=shift, p_head=0.1)
    probabilities = exact_probabilities(cardinality, exponent, shift, 0.1)
    middles = np.cumsum(probabilities) - probabilities / 2
    ranks = np.concatenate([np.arange(0, 70_000), np.arange(70_000, cardinality, 37), [cardinality - 1]])
    np.testing.assert_array_equal(law.ranks(middles[ranks]), ranks)


@pytest.mark.parametrize("exponent", [0.91, 1.0219, 1.2])
def test_coverage_of_ten_million_ids_equals_the_sum(exponent):
    cardinality = 10_131_227
    law = zipf_mandelbrot_law(cardinality=cardinality, exponent=exponent, shift=0.5, p_head=0.05)
    below = np.cumsum(exact_probabilities(cardinality, exponent, 0.5, 0.05))
    for ranks in (1, 2, 65_536, 65_537, 65_538, 100_000, 5_000_000, cardinality):
        assert law.coverage(ranks) == pytest.approx(below[ranks - 1], rel=1e-8)
    assert law.coverage(0) == 0.0
    assert law.coverage(10 * cardinality) == pytest.approx(1.0, abs=1e-12)


def test_draws_of_three_hundred_million_ids_follow_the_analytic_coverage():
    law = zipf_mandelbrot_law(cardinality=300_000_000, exponent=1.02, shift=0.0, p_head=0.05)
    draws = 400_000
    ranks = law.draw(np.random.default_rng(3), draws)
    assert ranks.min() == 0
    assert 280_000_000 < ranks.max() < 300_000_000
    for limit in (1, 1_000, 65_537, 1_000_000, 30_000_000, 200_000_000):
        share = law.coverage(limit)
        error = np.sqrt(share * (1 - share) / draws)
        assert abs((ranks < limit).mean() - share) < 5 * error
    assert law.cdf.nbytes < 600_000  # no table of the column's size


def test_uniforms_at_the_edges_give_the_first_and_the_last_rank():
    law = zipf_mandelbrot_law(cardinality=1_000_000, exponent=1.1, shift=2.0, p_head=0.3)
    almost_one = np.nextafter(1.0, 0.0)
    assert law.ranks(np.array([0.0, 0.2999, 0.3001, almost_one])).tolist() == [0, 0, 1, 999_999]
    assert pmf_law(np.array([0.5, 0.3, 0.2])).ranks(np.array([0.0, 0.5, almost_one])).tolist() == [0, 1, 2]


def test_a_cap_keeps_the_law_of_the_ranks_that_remain():
    law = zipf_mandelbrot_law(cardinality=9_000_000, exponent=1.1, shift=2.0, p_head=0.3, max_cardinality=10)
    np.testing.assert_allclose(law.exact, exact_probabilities(10, 1.1, 2.0, 0.3), rtol=1e-12)
    np.testing.assert_allclose(pmf_law(np.array([0.5, 0.3, 0.2]), max_cardinality=2).exact, [0.625, 0.375])
    one = zipf_mandelbrot_law(cardinality=9_000_000, exponent=1.1, shift=2.0, p_head=0.3, max_cardinality=1)
    assert one.draw(np.random.default_rng(0), 100).tolist() == [0] * 100


def test_draws_are_a_function_of_the_generator():
    law = zipf_mandelbrot_law(cardinality=9_000_000, exponent=1.02, shift=0.0)
    first, second = (law.draw(np.random.default_rng(11), 1000) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(law.draw(np.random.default_rng(11), 400), first[:400])


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.1, 4.0),
    st.floats(0.5, 1e6),
    st.floats(1.001, 1e4),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9),
)
def test_the_inverse_undoes_the_integral(exponent, low, ratio, shares):
    high = low * ratio
    x = power_inverse(np.array(shares), low, high, exponent)
    assert (low * (1 - 1e-9) <= x).all()
    assert (x <= high * (1 + 1e-3)).all()  # at the end of a steep law a double of `share` resolves no better
    back = power_integral(low, np.maximum(x, low), exponent) / power_integral(low, high, exponent)
    np.testing.assert_allclose(back, shares, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cardinality": 0}, "cardinality=0"),
        ({"cardinality": 300_000_001}, "cardinality=300000001"),
        ({"exponent": 0.0}, "exponent=0.0"),
        ({"exponent": float("nan")}, "exponent=nan"),
        ({"shift": -1.0}, "shift=-1.0"),
        ({"shift": float("inf")}, "shift=inf"),
        ({"p_head": 1.5}, "p_head=1.5"),
        ({"p_miss": -0.1}, "p_miss=-0.1"),
    ],
)
def test_a_law_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        zipf_mandelbrot_law(**{"cardinality": 100, "exponent": 1.1, "shift": 0.0, **arguments})


@pytest.mark.parametrize("probabilities", [[], [0.0], [-0.1, 1.1], [float("nan")], [[0.5, 0.5]]])
def test_a_pmf_that_makes_no_sense_is_refused(probabilities):
    with pytest.raises(ValueError, match="pmf"):
        pmf_law(np.array(probabilities))
