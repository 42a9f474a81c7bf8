"""A set of locations that many others are compared with."""

from __future__ import annotations

import numpy as np

from headrace.ingest._location_set import contains, fill
from headrace.ingest.step_plan import U64, Bool


class LocationSet:
    """Which others are among `locations` (uint64 [n], any order, ABSENT left out): exact, in time of their number."""

    def __init__(self, locations: U64) -> None:
        self._table = np.empty(max(2, 1 << (2 * len(locations)).bit_length()), np.uint64)
        fill(self._table, np.ascontiguousarray(locations))

    def contains(self, locations: U64) -> Bool:
        """bool [m]."""
        found = np.empty(len(locations), np.bool_)
        contains(self._table, np.ascontiguousarray(locations), found.view(np.uint8))
        return found
