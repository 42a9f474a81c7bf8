"""Ranges of lines against a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.line_ranges import LineRanges


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12))
def test_ranges_are_a_set_of_lines(added: list[tuple[int, int]]) -> None:
    ranges, expected = LineRanges(), set[int]()
    for begin, lines in added:
        ranges.add(begin, begin + lines)
        expected |= set(range(begin, begin + lines))
        assert {line for line in range(-1, 45) if line in ranges} == expected
    gaps = sum(line + 1 not in expected for line in expected)
    assert len(ranges._begins) == len(ranges._ends) == gaps  # neighbours are joined


def test_a_pass_in_order_is_one_range() -> None:
    ranges = LineRanges()
    for first in range(0, 10_000, 10):
        ranges.add(first, first + 10)
    assert (ranges._begins, ranges._ends) == ([0], [10_000])
