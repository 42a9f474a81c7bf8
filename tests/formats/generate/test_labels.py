from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import roc_auc_score

from headrace.formats.generate.calibration import expected_auc, probability
from headrace.formats.generate.features import FeatureBlock, FeatureStream
from headrace.formats.generate.labels import LabelModel, build_label_model
from headrace.formats.generate.presets import load_preset


def stream(name: str = "criteo-kaggle", *, seed: int = 0, rows: int = 20_000, cap: int | None = None) -> FeatureStream:
    preset = load_preset(name, max_cardinality=cap)
    return FeatureStream(preset=preset, seed=seed, rows_per_block=rows, drift=0.0, drift_rows=10**6)


def mix(x: int, key: int) -> int:
    x ^= key
    for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
        x ^= x >> shift
        x = (x * multiplier) & 0xFFFFFFFF
    return x ^ (x >> 16)


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def log_odds_of_row(model: LabelModel, block: FeatureBlock, row: int) -> float:
    """The formula of the module, term by term in plain numbers."""
    total, root3 = 0.0, 3.0**0.5
    keys = model.weight_keys.tolist()
    ids, valid = block.ids[:, row].tolist(), block.ids_valid[:, row].tolist()
    for c, (id_, ok) in enumerate(zip(ids, valid, strict=True)):
        word = mix(id_, keys[c][0]) if ok else keys[c][1]
        total += signed(word, 32) / 2**31 * root3 * float(model.damping[c])
    for left, right in model.pairs:
        if valid[left] and valid[right]:
            u, v = mix(ids[left], keys[left][2]), mix(ids[right], keys[right][3])
            dot = sum(signed(u >> s & 0xFFFF, 16) * signed(v >> s & 0xFFFF, 16) for s in (0, 16)) * 3 / 2**30
            total += 0.7 / 2**0.5 * float(model.damping[left]) * float(model.damping[right]) * dot
    for j, (slope, missing) in enumerate(model.dense_weights.tolist()):
        present = block.dense_valid[j, row]
        total += slope * np.log1p(max(int(block.dense[j, row]), 0)) if present else missing
    return model.bias + model.scale * total


@pytest.mark.parametrize("name", ["criteo-kaggle", "criteo-terabyte", "taobao-userbehavior"])
def test_log_odds_equal_the_formula_term_by_term(name):
    source = stream(name, rows=100)
    model, block = build_label_model(source), source.block(0)
    expected = [log_odds_of_row(model, block, row) for row in range(100)]
    np.testing.assert_allclose(model.log_odds(block), expected, atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("name", "rate"), [("criteo-kaggle", 0.256), ("criteo-terabyte", 0.033), ("taobao-userbehavior", 0.104)]
)
def test_click_rate_and_area_of_rows_that_calibration_has_not_seen(name, rate, seed):
    source = stream(name, seed=seed, rows=60_000)
    p = probability(build_label_model(source).log_odds(source.block(1)))
    assert p.mean() == pytest.approx(rate, rel=0.05)
    assert 0.78 < expected_auc(p) < 0.82


def test_labels_are_drawn_with_the_probabilities():
    source = stream()
    model, block = build_label_model(source), source.block(0)
    log_odds = model.log_odds(block)
    labels = model.draw(log_odds, 0)
    assert labels.dtype == np.uint8
    order = np.argsort(log_odds)
    for part in np.array_split(order, 10):
        p = probability(log_odds[part])
        assert labels[part].mean() == pytest.approx(p.mean(), abs=4.5 * np.sqrt((p * (1 - p)).sum()) / len(part))
    np.testing.assert_array_equal(model.draw(log_odds, 0), labels)
    assert not np.array_equal(model.draw(log_odds, 1), labels)


def test_the_effect_of_an_id_does_not_depend_on_its_row():
    source = stream(rows=500)
    model, block = build_label_model(source), source.block(0)
    order = np.random.default_rng(0).permutation(500)
    shuffled = FeatureBlock(
        block.dense[:, order], block.dense_valid[:, order], block.ids[:, order], block.ids_valid[:, order], 0
    )
    np.testing.assert_array_equal(model.log_odds(shuffled), model.log_odds(block)[order])


def test_what_lies_under_a_missing_value_does_not_matter():
    source = stream(rows=500)
    model, block = build_label_model(source), source.block(0)
    other = FeatureBlock(
        np.where(block.dense_valid, block.dense, 12_345),
        block.dense_valid,
        np.where(block.ids_valid, block.ids, np.uint32(99)),
        block.ids_valid,
        0,
    )
    np.testing.assert_array_equal(model.log_odds(other), model.log_odds(block))


def test_one_id_a_column_still_has_the_click_rate():
    source = stream("taobao-userbehavior", cap=1, rows=100)
    p = probability(build_label_model(source).log_odds(source.block(0)))
    assert p == pytest.approx(np.full(100, 0.104), abs=1e-6)


def one_hot(block: FeatureBlock, buckets: int) -> csr_matrix:
    """float32 [rows, buckets]: a one for each present id, hashed with its column."""
    rows, columns = [], []
    for c, (ids, valid) in enumerate(zip(block.ids, block.ids_valid, strict=True)):
        hashed = (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(c * 7919)) >> np.uint64(40)
        rows.append(np.flatnonzero(valid))
        columns.append((hashed[valid] % np.uint64(buckets)).astype(np.int64))
    i, j = np.concatenate(rows), np.concatenate(columns)
    return csr_matrix((np.ones(len(i), np.float32), (i, j)), shape=(block.rows, buckets))


def test_a_plain_model_learns_from_60_000_rows_but_not_more_than_there_is():
    source = stream(rows=60_000)
    model = build_label_model(source)
    blocks = [source.block(0), source.block(1).slice(0, 20_000)]
    log_odds = [model.log_odds(block) for block in blocks]
    labels = [model.draw(odds, index) for index, odds in enumerate(log_odds)]
    learner = SGDClassifier(loss="log_loss", alpha=3e-5, max_iter=4, tol=None, random_state=0)
    learner.fit(one_hot(blocks[0], 1 << 18), labels[0])
    reached = roc_auc_score(labels[1], learner.decision_function(one_hot(blocks[1], 1 << 18)))
    best = roc_auc_score(labels[1], log_odds[1])
    assert 0.65 < reached < best < 0.83
