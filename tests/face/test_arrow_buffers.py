"""Arrow arrays to NumPy arrays: offsets and validity bitmaps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.arrow_buffers import null_mask, primitive_values


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**32 - 1))), st.integers(0, 20), st.integers(0, 30))
def test_slices_with_an_offset_into_the_bitmap(values, start, length):
    array = pa.array(values, pa.uint32()).slice(start, length)
    expected = values[start : start + length]
    mask = null_mask(array)
    mask = np.zeros(len(expected), bool) if mask is None else mask
    assert mask.tolist() == [v is None for v in expected]
    assert [int(v) for v, m in zip(primitive_values(array), mask, strict=True) if not m] == [
        v for v in expected if v is not None
    ]
