"""LocationSet and its twin against numpy.isin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.indexer.indexed import ABSENT
from headrace.ingest import _location_set
from headrace.ingest._location_set_py import _MULTIPLIER, PyLocationSet
from headrace.ingest.location_set import LocationMap, LocationSet

BOTH = pytest.mark.parametrize("kind", [LocationSet, PyLocationSet])

PLACES = st.integers(0, 40).map(lambda n: (n % 7) | (n << 14) | ((n % 3) << 46))  # many with the same low bits


@BOTH
@given(inside=st.lists(PLACES, max_size=60), asked=st.lists(PLACES, max_size=60))
def test_it_tells_what_isin_tells(kind, inside, asked):
    within, others = np.array(inside, np.uint64), np.array(asked, np.uint64)
    assert kind(within).contains(others).tolist() == np.isin(others, within).tolist()


@BOTH
@pytest.mark.parametrize("n", [1, 1000])
def test_locations_that_all_fall_together(kind, n):
    inverse = np.uint64(pow(int(_MULTIPLIER), -1, 1 << 64))
    locations = np.arange(n, dtype=np.uint64) * inverse  # times the multiplier: 0, 1, 2, ..., with the same high bits
    assert len(PyLocationSet(locations[::2])._others) == (n - 1) // 2
    assert kind(locations[::2]).contains(locations).tolist() == [i % 2 == 0 for i in range(n)]


@BOTH
def test_an_absent_location_is_never_in_it(kind):
    places = np.array([0, 1 << 14], np.uint64)
    assert kind(places).contains(np.array([ABSENT, 0, 1], np.uint64)).tolist() == [False, True, False]
    assert not kind(places[:0]).contains(np.array([ABSENT, 0], np.uint64)).any()


@given(inside=st.lists(PLACES, max_size=60, unique=True), asked=st.lists(PLACES, max_size=60))
def test_a_map_tells_where_each_stands(inside, asked):
    expected = [inside.index(one) if one in inside else -1 for one in asked]
    assert LocationMap(np.array(inside, np.uint64)).find(np.array(asked, np.uint64)).tolist() == expected


def test_a_map_leaves_absent_locations_out():
    places = np.array([ABSENT, 5, ABSENT, 7], np.uint64)
    assert LocationMap(places).find(np.array([7, ABSENT, 5, 0], np.uint64)).tolist() == [3, -1, 1, -1]
    assert LocationMap(places[:0]).find(places).tolist() == [-1] * 4


@pytest.mark.parametrize("size", [0, 1, 3, 6])
def test_a_table_without_room_is_refused(size):
    table, places = np.zeros(size, np.uint64), np.arange(2, dtype=np.uint64)
    with pytest.raises(ValueError, match="table of"):
        _location_set.fill(table, places)
    with pytest.raises(ValueError, match="table of"):
        _location_set.fill(np.zeros(2, np.uint64), places)
    with pytest.raises(ValueError, match="3 positions"):
        _location_set.fill_positions(np.zeros(4, np.uint64), np.zeros(3, np.int64), places)
    with pytest.raises(ValueError, match="3 positions"):
        _location_set.find(np.zeros(4, np.uint64), np.zeros(3, np.int64), places, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="3 places"):
        _location_set.find(np.zeros(4, np.uint64), np.zeros(4, np.int64), places, np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="3 places"):
        _location_set.contains(np.zeros(4, np.uint64), places, np.zeros(3, np.uint8))
