"""Locations, or other words, that many others are compared with."""

from __future__ import annotations

import numpy as np

from headrace.ingest._location_set import contains, fill, fill_positions, find
from headrace.ingest.step_plan import I64, U64, Bool


class LocationSet:
    """Which others are among `locations` (uint64 [n], any order, ABSENT left out): exact, in time of their number."""

    def __init__(self, locations: U64) -> None:
        self._table = _table_for(len(locations))
        fill(self._table, np.ascontiguousarray(locations))

    def contains(self, locations: U64) -> Bool:
        """bool [m]."""
        found = np.empty(len(locations), np.bool_)
        contains(self._table, np.ascontiguousarray(locations), found.view(np.uint8))
        return found


class LocationMap:
    """Where in `locations` (uint64 [n], each once, ABSENT left out) others stand: exact, in time of their number."""

    def __init__(self, locations: U64) -> None:
        self._table = _table_for(len(locations))
        self._positions = np.empty(len(self._table), np.int64)
        fill_positions(self._table, self._positions, np.ascontiguousarray(locations))

    def find(self, locations: U64) -> I64:
        """int64 [m]: the position of each, -1 for those that are not there."""
        found = np.empty(len(locations), np.int64)
        find(self._table, self._positions, np.ascontiguousarray(locations), found)
        return found


def _table_for(count: int) -> U64:
    return np.empty(max(2, 1 << (2 * count).bit_length()), np.uint64)
