"""Synthetic multi-hot ids, against the published rule as it stands."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.formats import multi_hot
from headrace.formats.criteo_arrays import DCNV2_MULTI_HOT_SIZES, DCNV2_TABLE_SIZES
from headrace.formats.multi_hot import MultiHotTables


def test_published_sizes() -> None:
    assert (len(DCNV2_MULTI_HOT_SIZES), sum(DCNV2_MULTI_HOT_SIZES)) == (26, 214)
    assert (len(DCNV2_TABLE_SIZES), sum(DCNV2_TABLE_SIZES)) == (26, 204_184_588)


@pytest.mark.parametrize("rows_at_once", [1, 7, 1 << 16])
def test_the_same_ids_as_one_draw_for_each_table(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(multi_hot, "_ROWS_AT_ONCE", rows_at_once)
    hot, sizes = (3, 1, 5, 2), (50, 7, 1000, 3)
    tables = MultiHotTables(hot, sizes)
    generator = np.random.RandomState(0)  # the stream of np.random.seed(0)
    for feature, (h, n) in enumerate(zip(hot, sizes, strict=True)):
        drawn = generator.randint(0, n, size=(n, h - 1))
        expected = np.concatenate([np.arange(n)[:, None], drawn], axis=-1)
        ids = np.array([0, n - 1, n, 3 * n + 1, 2**32 - 1], np.uint32)
        found = tables.expand(feature, ids)
        np.testing.assert_array_equal(found, expected[ids % n])
        assert found.dtype == np.uint64


def test_literal_ids() -> None:
    # np.random.seed(0); np.random.randint(0, 10, size=(10, 2)) begins 5 0, 3 3, 7 9
    tables = MultiHotTables((3,), (10,))
    assert tables.expand(0, np.array([0, 1, 12], np.uint64)).tolist() == [[0, 5, 0], [1, 3, 3], [2, 7, 9]]


def test_sizes_go_together() -> None:
    with pytest.raises(ValueError, match="2 multi-hot sizes for 1 tables"):
        MultiHotTables((1, 2), (3,))
    with pytest.raises(ValueError, match="multi-hot size 0=0"):
        MultiHotTables((0,), (3,))
