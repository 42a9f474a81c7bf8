from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from headrace.formats.generate.auc import ScoreHistogram


def histogram(scores: np.ndarray, labels: np.ndarray) -> ScoreHistogram:
    counted = ScoreHistogram()
    counted.add(scores.astype(np.float32), labels.astype(np.uint8))
    return counted


@pytest.mark.parametrize(("spread", "shift"), [(1.0, 0.0), (0.3, -3.0), (5.0, 1.0)])
def test_area_is_that_of_sklearn_and_the_bound_holds(spread, shift):
    generator = np.random.default_rng(1)
    scores = generator.normal(shift, spread, 30_000).astype(np.float32)
    labels = (generator.random(30_000) < 1 / (1 + np.exp(-scores))).astype(np.uint8)
    counted = histogram(scores, labels)
    exact = roc_auc_score(labels, scores)
    assert counted.auc() == pytest.approx(exact, abs=1e-3)
    assert abs(counted.auc() - exact) <= counted.bound() + 1e-12
    assert counted.bound() < 3e-4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-20, 20), st.booleans()), min_size=2, max_size=60))
def test_scores_far_apart_or_equal_are_exact(pairs):
    scores = np.array([score / 2 for score, _ in pairs])
    labels = np.array([label for _, label in pairs], np.uint8)
    area = histogram(scores, labels).auc()
    if labels.min() == labels.max():
        assert area is None
    else:
        assert area == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_parts_in_any_order_add_up_to_the_whole():
    generator = np.random.default_rng(2)
    scores, labels = generator.normal(size=999).astype(np.float32), generator.integers(0, 2, 999).astype(np.uint8)
    whole, joined = histogram(scores, labels), ScoreHistogram()
    for part in (slice(700, 999), slice(0, 250), slice(250, 700)):
        joined.merge(histogram(scores[part], labels[part]))
    assert (joined.rows, joined.positives) == (999, int(labels.sum()))
    assert joined.auc() == whole.auc()


def test_scores_outside_the_range_go_to_the_end_bins():
    assert histogram(np.array([-1e9, 1e9, 15.0]), np.array([0, 1, 0])).auc() == 1.0
    assert histogram(np.array([1e9, 1e8]), np.array([0, 1])).auc() == 0.5


def test_nothing_counted_has_no_area():
    assert ScoreHistogram().auc() is None
    assert ScoreHistogram().bound() == 0.0
