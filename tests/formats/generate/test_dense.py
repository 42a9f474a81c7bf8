from __future__ import annotations

import numpy as np
import pytest

from headrace.formats.generate.dense import DenseLaw


def test_atoms_and_tail_have_their_shares():
    law = DenseLaw(p_miss=0.5, atoms=((-3, 0.1), (0, 0.3)), mu=2.0, sigma=1.0, low=1)
    values = law.draw(np.random.default_rng(0), 100_000)
    assert values.dtype == np.int64
    assert (values == -3).mean() == pytest.approx(0.1, abs=0.005)
    assert (values == 0).mean() == pytest.approx(0.3, abs=0.008)
    tail = values[values > 0]
    assert len(tail) / 100_000 == pytest.approx(0.6, abs=0.008)
    assert np.median(tail) == pytest.approx(np.floor(np.exp(2.0)), abs=1)
    assert np.quantile(tail, 0.99) == pytest.approx(np.exp(2.0 + 2.326), rel=0.1)


def test_values_stay_within_their_limits():
    law = DenseLaw(p_miss=0.0, mu=3.0, sigma=40.0, low=2, high=2**31 - 1)
    values = law.draw(np.random.default_rng(0), 10_000)
    assert (values.min(), values.max()) == (2, 2**31 - 1)


def test_atoms_that_sum_to_one_leave_no_tail():
    law = DenseLaw(p_miss=0.0, atoms=((1, 0.5), (7, 0.5)), mu=9.0, sigma=1.0)
    assert np.unique(law.draw(np.random.default_rng(0), 1_000)).tolist() == [1, 7]


@pytest.mark.parametrize(
    "change",
    [
        {"atoms": ((0, 0.7), (1, 0.4))},
        {"atoms": ((0, -0.1),)},
        {"p_miss": 1.1},
        {"sigma": -1.0},
        {"sigma": float("nan")},
        {"low": 5, "high": 4},
        {"high": 2**31},
    ],
)
def test_a_law_that_makes_no_sense_is_refused(change):
    with pytest.raises(ValueError, match=r"atoms|not a law"):
        DenseLaw(**{"p_miss": 0.0, "mu": 1.0, "sigma": 1.0, **change})
