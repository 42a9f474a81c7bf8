"""NumPy twin of `_location_set.pyx`."""

from __future__ import annotations

import numpy as np

from headrace.indexer.indexed import ABSENT
from headrace.ingest.step_plan import I64, U64, Bool

_ENTRIES_A_ROW = 8
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbours fall far apart


class PyLocationSet:
    """Twin of :class:`headrace.ingest.location_set.LocationSet`.

    A table of one location an entry, at the high bits of a product: the low bits of a location, its place in a chunk,
    are much the same in all chunks. Of those that fall together the table has one; the others, few, are searched for.
    """

    def __init__(self, locations: U64) -> None:
        bits = max(4, (_ENTRIES_A_ROW * len(locations)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._table = np.full(1 << bits, ABSENT, np.uint64)
        at = self._at(locations)
        self._table[at] = locations
        self._others = np.sort(locations[self._table[at] != locations])

    def contains(self, locations: U64) -> Bool:
        """bool [m]."""
        held = self._table[self._at(locations)]
        found = np.asarray((held == locations) & (locations != ABSENT), np.bool_)
        if len(self._others):  # each of them is where the table has another one
            left = np.flatnonzero((held != ABSENT) & ~found)
            wanted = locations[left]
            places = np.minimum(np.searchsorted(self._others, wanted), len(self._others) - 1)
            found[left] = self._others[places] == wanted
        return found

    def _at(self, locations: U64) -> I64:
        places: I64 = ((locations * _MULTIPLIER) >> self._shift).view(np.int64)
        return places
