"""Sets of lines of a file as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class LineRanges:
    """Lines seen so far. Added in the order of a file, they are one range; a jump begins another one.

    ``_begins[i] < _ends[i] < _begins[i + 1]``: sorted, apart, never touching.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, line: int) -> bool:
        at = bisect_right(self._begins, line)
        return at > 0 and line < self._ends[at - 1]

    def add(self, begin: int, end: int) -> None:
        """Add the lines [begin, end)."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)  # the ranges [first, last) touch the new one
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]
