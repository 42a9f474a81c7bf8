"""A set of locations that many others are compared with."""

from __future__ import annotations

import numpy as np

from headrace.indexer.indexed import ABSENT
from headrace.ingest.step_plan import I64, U64, Bool

_ENTRIES_A_ROW = 8


class LocationSet:
    """Which others are among `locations` (uint64 [n], any order, none ABSENT): exact, in time of their number.

    A table of one location an entry, by the low bits, which are the place in a chunk and the chunk's last bits; of
    those that fall together the table has one, and the others, few, are searched for.
    """

    def __init__(self, locations: U64) -> None:
        entries = 1 << max(4, (_ENTRIES_A_ROW * len(locations)).bit_length())
        self._mask = np.uint64(entries - 1)
        self._table = np.full(entries, ABSENT, np.uint64)
        at = self._at(locations)
        self._table[at] = locations
        self._others = np.sort(locations[self._table[at] != locations])

    def contains(self, locations: U64) -> Bool:
        """bool [m]."""
        found = np.asarray(self._table[self._at(locations)] == locations, np.bool_)
        if len(self._others):
            left = np.flatnonzero(~found)
            places = np.minimum(np.searchsorted(self._others, locations[left]), len(self._others) - 1)
            found[left] = self._others[places] == locations[left]
        return found

    def _at(self, locations: U64) -> I64:
        places: I64 = (locations & self._mask).view(np.int64)
        return places
