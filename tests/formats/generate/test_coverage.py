from __future__ import annotations

import numpy as np
import pytest

from headrace.formats.generate.coverage import coverage, expected_unique_share, table_rows, unique_coverage
from headrace.formats.generate.popularity import pmf_law, zipf_mandelbrot_law
from headrace.formats.generate.presets import load_preset

LAWS = [
    pmf_law(np.array([0.6, 0.3, 0.1]), p_miss=0.2),
    pmf_law(np.array([1.0])),
    zipf_mandelbrot_law(cardinality=200_000, exponent=1.05, shift=3.0, p_head=0.1, p_miss=0.4),
]


def every_row() -> np.ndarray:
    """Probabilities of all table rows of LAWS, most popular first, summed term by term."""
    weights = (np.arange(1, 200_000) + 3.0) ** -1.05
    rows = [0.48, 0.24, 0.08, 0.2, 1.0, 0.4, 0.06, *(0.54 * weights / weights.sum())]
    return -np.sort(-np.array(rows))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 500, 70_000, 199_999, 200_006, 10**9])
def test_coverage_equals_the_sum_over_all_rows(rows):
    assert coverage(LAWS, rows) == pytest.approx(every_row()[:rows].sum() / 3, rel=1e-4)


@pytest.mark.parametrize("batch", [1, 10, 8192, 10**6])
def test_unique_share_equals_the_sum_over_all_rows(batch):
    with np.errstate(divide="ignore"):
        expected = -np.expm1(batch * np.log1p(-every_row())).sum() / (batch * 3)
    assert expected_unique_share(LAWS, batch) == pytest.approx(expected, rel=1e-4)


def test_probabilities_sum_to_the_number_of_columns():
    for name in ("criteo-kaggle", "criteo-terabyte", "taobao-userbehavior"):
        laws = list(load_preset(name).sparse.values())
        probability, count = table_rows(laws)
        assert (probability * count).sum() == pytest.approx(len(laws), rel=1e-6)
        assert count.sum() == pytest.approx(sum(law.cardinality + (law.p_miss > 0) for law in laws), rel=1e-3)


# The published coverages that the exponent shifts were chosen to meet.
@pytest.mark.parametrize(
    ("preset", "skew", "rows", "share"),
    [
        ("criteo-kaggle", "pessimistic", 337_626, 0.92),  # the hottest 1 %
        ("criteo-kaggle", "default", 32_768, 0.905),
        ("criteo-kaggle", "skewed", 65_536, 0.96),
        ("criteo-kaggle", "skewed", 32_768, 0.946),
        ("criteo-terabyte", "default", 65_536, 0.96),
        ("taobao-userbehavior", "default", 64_000, 0.739),
        ("taobao-userbehavior", "default", 227_000, 0.86),
    ],
)
def test_presets_meet_the_published_coverage(preset, skew, rows, share):
    laws = list(load_preset(preset, skew=skew).sparse.values())
    assert coverage(laws, rows) == pytest.approx(share, abs=0.003)


@pytest.mark.parametrize(("preset", "share"), [("criteo-kaggle", 0.168), ("criteo-terabyte", 0.123)])
def test_presets_meet_the_unique_share_of_a_batch(preset, share):
    laws = list(load_preset(preset).sparse.values())
    assert expected_unique_share(laws, 8192) == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize("rows", [0, 1, 7, 500, 70_000, 10**9])
def test_unique_coverage_equals_the_sum_over_all_rows(rows):
    with np.errstate(divide="ignore"):
        seen = -np.expm1(8192 * np.log1p(-every_row()))
    assert unique_coverage(LAWS, rows, 8192) == pytest.approx(seen[:rows].sum() / seen.sum(), rel=1e-4)


@pytest.mark.parametrize(
    ("preset", "rows", "share"), [("criteo-kaggle", 32_768, 0.45), ("criteo-terabyte", 65_536, 0.68)]
)
def test_the_same_rows_are_fewer_of_the_unique_rows(preset, rows, share):
    laws = list(load_preset(preset).sparse.values())
    assert unique_coverage(laws, rows, 8192) == pytest.approx(share, abs=0.005)
