import numpy as np

from headrace.formats.rows import Source, SourceRange
from headrace.ingest.nodes.row_names import describe_rows


def test_ranges_are_named() -> None:
    source = Source(("a", "b"), (SourceRange(0, 3, 2), SourceRange(1, 0, 0), SourceRange(1, 5, 1)))
    assert describe_rows(source) == "rows 3..4 of a, rows 5..5 of b"


def test_long_lists_are_cut() -> None:
    source = Source(("a",), tuple(SourceRange(0, 10 * i, 2) for i in range(5)))
    assert describe_rows(source) == "rows 0..1 of a, rows 10..11 of a, rows 20..21 of a and 2 more ranges"


def test_shuffled_and_empty() -> None:
    shuffled = Source(("a", "b"), None, np.array([1, 0], np.int32), np.array([7, 3]))
    assert describe_rows(shuffled) == "2 shuffled rows, the first is row 7 of b"
    assert describe_rows(Source((), ())) == "no rows"
