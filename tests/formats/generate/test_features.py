from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.formats.generate.features import FeatureBlock, FeatureStream
from headrace.formats.generate.presets import load_preset, preset_names


def stream(name: str = "criteo-kaggle", **changes) -> FeatureStream:
    options = {"seed": 0, "rows_per_block": 8192, "drift": 0.0, "drift_rows": 10**6, **changes}
    preset = load_preset(name, max_cardinality=options.pop("max_cardinality", None))
    return FeatureStream(preset=preset, **options)


def same(a: FeatureBlock, b: FeatureBlock) -> bool:
    fields = ("dense", "dense_valid", "ids", "ids_valid")
    return a.first_row == b.first_row and all(np.array_equal(getattr(a, f), getattr(b, f)) for f in fields)


@pytest.mark.parametrize(("name", "share"), [("criteo-kaggle", 0.168), ("criteo-terabyte", 0.123)])
def test_unique_share_of_a_batch(name, share):
    block = stream(name).block(0)
    unique = sum(len(np.unique(ids[valid])) for ids, valid in zip(block.ids, block.ids_valid, strict=True))
    assert unique / (26 * 8192) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("name", ["criteo-kaggle", "criteo-terabyte"])
def test_columns_of_a_group_are_missing_in_the_same_rows(name):
    source = stream(name)
    block, preset = source.block(3), source.preset
    valid = dict(zip((*preset.dense, *preset.sparse), (*block.dense_valid, *block.ids_valid), strict=True))
    for group in preset.joint_missing:
        assert not valid[group[0]].all()
        for column in group[1:]:
            np.testing.assert_array_equal(valid[column], valid[group[0]])
    laws = {**preset.dense, **preset.sparse}
    for column, mask in valid.items():
        error = 5 * np.sqrt(max(laws[column].p_miss, 1e-3) / len(mask))
        assert 1 - mask.mean() == pytest.approx(laws[column].p_miss, abs=error)
    leaders = [g[0] for g in preset.joint_missing] + ["C6"] * (name == "criteo-kaggle")
    for i, a in enumerate(leaders):  # groups are independent of each other
        for b in leaders[:i]:
            assert abs(np.corrcoef(valid[a], valid[b])[0, 1]) < 5 / np.sqrt(8192)


def test_a_block_is_a_function_of_seed_and_index():
    first = stream()
    later = first.block(2)
    assert same(later, stream().block(2))
    assert later.first_row == 2 * 8192
    for other in (stream(seed=1).block(2), first.block(1)):
        assert not np.array_equal(other.ids, later.ids)
        assert not np.array_equal(other.dense, later.dense)
        assert not np.array_equal(other.ids_valid, later.ids_valid)


def test_another_seed_names_the_hot_ids_differently():
    hot = [np.bincount(np.unique(stream(seed=s).block(0).ids[0], return_inverse=True)[1]).max() for s in (0, 1)]
    assert hot[0] / 8192 == pytest.approx(hot[1] / 8192, abs=0.05)
    ids = [set(np.unique(stream(seed=s).block(0).ids[0]).tolist()) for s in (0, 1)]
    assert not ids[0] & ids[1]


def test_columns_name_their_ids_independently():
    block = stream().block(0)
    frequent = [set(np.unique(column).tolist()) for column in block.ids[[13, 16, 22]]]
    assert not frequent[0] & frequent[1]
    assert not frequent[1] & frequent[2]


def test_drift_changes_the_rows_of_later_days_only_and_keeps_the_universe():
    options = {"rows_per_block": 1000, "drift_rows": 1500, "max_cardinality": 64}
    still, moving = stream(drift=0.0, **options), stream(drift=0.5, **options)
    assert same(still.block(0), moving.block(0))
    a, b = still.block(1), moving.block(1)  # day 0 ends in the middle of it
    np.testing.assert_array_equal(a.ids[:, :500], b.ids[:, :500])
    changed = (a.ids[:, 500:] != b.ids[:, 500:]).mean()
    assert 0.2 < changed < 0.8
    np.testing.assert_array_equal(a.dense, b.dense)
    np.testing.assert_array_equal(a.ids_valid, b.ids_valid)
    everything = [stream(drift=1.0, **{**options, "rows_per_block": 60_000}).block(i).ids for i in range(2)]
    for column in np.concatenate(everything, axis=1):
        assert len(np.unique(column)) <= 64


def test_a_block_over_several_days_equals_its_days_drawn_with_their_own_map():
    source = stream(drift=0.3, drift_rows=100, rows_per_block=1000)
    still = replace(source, drift=0.0)
    ids, plain = source.block(1).ids, still.block(1).ids
    for column in (2, 5):
        back = {int(source.permutations[column](np.array([r], np.uint32))[0]): r for r in range(24)}
        for row in (0, 99, 100, 550, 999):
            rank = back.get(int(plain[column, row]))
            if rank is not None:
                position = source.drifts[column].positions(np.array([rank]), (1000 + row) // 100)
                assert ids[column, row] == source.permutations[column](position.astype(np.uint32))[0]


@pytest.mark.parametrize("name", preset_names())
def test_distinct_ids_never_exceed_the_cap(name):
    block = stream(name, max_cardinality=30, rows_per_block=20_000).block(0)
    counts = [len(np.unique(column)) for column in block.ids]
    assert max(counts) == 30 if name != "taobao-userbehavior" else 29  # there rank 0 (no head) never occurs


def test_taobao_ids_are_small_numbers():
    block = stream("taobao-userbehavior").block(0)
    assert (block.ids.max(axis=1) < [2**20, 2**22, 2**14]).all()
    assert (block.ids.max(axis=1) > [2**19, 2**21, 2**13]).all()
    assert block.dense.shape == (0, 8192)


def test_the_calibration_sample_is_the_same_whatever_the_block_size():
    assert same(stream().calibration_sample(500), stream(rows_per_block=64).calibration_sample(500))


def test_a_slice_has_contiguous_columns_and_its_own_first_row():
    block = stream(rows_per_block=100).block(4)
    part = block.slice(10, 30)
    assert part.first_row == 410
    assert part.rows == 20
    np.testing.assert_array_equal(part.ids, block.ids[:, 10:30])
    assert all(a.flags.c_contiguous for a in (part.dense, part.dense_valid, part.ids, part.ids_valid))
    assert block.slice(0, 100) is block
