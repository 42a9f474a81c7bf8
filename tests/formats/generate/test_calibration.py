from __future__ import annotations

import numpy as np
import pytest

from headrace.formats.generate.calibration import calibrate, expected_auc, probability


def test_expected_area_equals_the_sum_over_all_pairs():
    p = np.random.default_rng(0).random(40)
    won = pairs = 0.0
    for i in range(40):
        for j in range(40):
            if i != j:
                pairs += p[i] * (1 - p[j])
                won += p[i] * (1 - p[j]) * (p[i] > p[j])
    assert expected_auc(p) == pytest.approx(won / pairs, rel=1e-12)


@pytest.mark.parametrize("click_rate", [0.5, 0.256, 0.033])
@pytest.mark.parametrize(("spread", "shift"), [(1.0, 0.0), (4.0, 30.0), (0.01, -2.0)])
def test_calibrated_log_odds_have_the_click_rate_and_the_area(click_rate, spread, shift):
    raw = np.random.default_rng(4).normal(shift, spread, 32_768).astype(np.float32)
    scale, bias = calibrate(raw, click_rate=click_rate, auc=0.8)
    p = probability(scale * raw.astype(np.float64) + bias)
    assert p.mean() == pytest.approx(click_rate, abs=1e-6)
    assert expected_auc(p) == pytest.approx(0.8, abs=3e-3)


def test_a_constant_sample_gets_the_click_rate_alone():
    scale, bias = calibrate(np.full(100, 3.0, np.float32), click_rate=0.25, auc=0.8)
    assert scale == 1.0
    assert probability(np.array([3.0 + bias]))[0] == pytest.approx(0.25, abs=1e-9)


@pytest.mark.parametrize("raw", [[], [1.0, float("nan")], [float("inf")]])
def test_values_that_are_not_finite_are_refused(raw):
    with pytest.raises(ValueError, match="finite"):
        calibrate(np.array(raw, np.float32), click_rate=0.25, auc=0.8)
