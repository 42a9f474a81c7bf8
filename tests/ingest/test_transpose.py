"""The native transpose of query ids against its NumPy twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.transpose import transpose_query_ids, transpose_query_ids_py

BOTH = pytest.mark.parametrize("transpose", [transpose_query_ids, transpose_query_ids_py])


@BOTH
def test_positions_ascend_within_each_unique_row(transpose):
    wide, positions, offsets = transpose(np.array([2, 0, 2, 1, 0], np.uint32), 4)
    assert wide.tolist() == [2, 0, 2, 1, 0]
    assert positions.tolist() == [1, 4, 3, 0, 2]
    assert offsets.tolist() == [0, 2, 3, 5, 5]
    assert {a.dtype.name for a in (wide, positions, offsets)} == {"int64"}


@BOTH
def test_an_empty_batch_has_one_offset(transpose):  # L17
    wide, positions, offsets = transpose(np.empty(0, np.uint32), 0)
    assert (wide.tolist(), positions.tolist(), offsets.tolist()) == ([], [], [0])


@BOTH
def test_an_id_out_of_range_is_refused(transpose):
    with pytest.raises(IndexError, match="query id 3"):
        transpose(np.array([0, 3], np.uint32), 3)


def test_read_only_and_strided_input():
    ids = np.array([1, 9, 0, 9, 1, 9], np.uint32)[::2]
    ids.flags.writeable = False
    assert transpose_query_ids(ids, 2)[1].tolist() == [1, 0, 2]


@given(st.lists(st.integers(0, 20)), st.integers(21, 40))
def test_native_equals_twin(ids, num_unique):
    array = np.array(ids, np.uint32)
    for native, twin in zip(
        transpose_query_ids(array, num_unique), transpose_query_ids_py(array, num_unique), strict=True
    ):
        np.testing.assert_array_equal(native, twin)


@pytest.mark.parametrize("nnz", [1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 4099])
@pytest.mark.parametrize("num_unique", [1, 2, 16, 1024])
@pytest.mark.parametrize("skew", [1.0, 8.0])
def test_runs_that_are_counted_side_by_side_give_the_same(nnz, num_unique, skew):
    ids = (np.random.default_rng(nnz).random(nnz) ** skew * num_unique).astype(np.uint32)
    for native, twin in zip(transpose_query_ids(ids, num_unique), transpose_query_ids_py(ids, num_unique), strict=True):
        np.testing.assert_array_equal(native, twin)
    ids[-1] = num_unique
    with pytest.raises(IndexError, match=f"query id {num_unique} at position {nnz - 1} "):
        transpose_query_ids(ids, num_unique)
