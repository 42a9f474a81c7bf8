"""LocationSet against numpy.isin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.location_set import _MULTIPLIER, LocationSet

PLACES = st.integers(0, 40).map(lambda n: (n % 7) | (n << 14) | ((n % 3) << 46))  # many with the same low bits


@given(st.lists(PLACES, max_size=60), st.lists(PLACES, max_size=60))
def test_it_tells_what_isin_tells(inside, asked):
    within, others = np.array(inside, np.uint64), np.array(asked, np.uint64)
    assert LocationSet(within).contains(others).tolist() == np.isin(others, within).tolist()


@pytest.mark.parametrize("n", [1, 1000])
def test_locations_that_all_fall_together(n):
    inverse = np.uint64(pow(int(_MULTIPLIER), -1, 1 << 64))
    locations = np.arange(n, dtype=np.uint64) * inverse  # times the multiplier: 0, 1, 2, ..., with the same high bits
    assert len(LocationSet(locations[::2])._others) == (n - 1) // 2
    assert LocationSet(locations[::2]).contains(locations).tolist() == [i % 2 == 0 for i in range(n)]
