"""Row blocks and their sources against a list of (file, row) pairs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.rows import RowBlock, Source, SourceRange

FILES = ("a", "b", "c")
RANGES = st.lists(st.builds(SourceRange, st.integers(0, 2), st.integers(0, 50), st.integers(0, 6)), max_size=5)


def pairs(source: Source) -> list[tuple[int, int]]:
    file, row = source.arrays()
    assert (file.dtype, row.dtype) == (np.int32, np.int64)
    return list(zip(file.tolist(), row.tolist(), strict=True))


def expanded(ranges: list[SourceRange]) -> list[tuple[int, int]]:
    return [(r.file, r.first_row + i) for r in ranges for i in range(r.rows)]


@given(RANGES, st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_slice_of_ranges_and_of_arrays(ranges, offset, rows, shuffled):
    source = Source(FILES, tuple(ranges))
    if shuffled:
        source = source.take(np.arange(source.num_rows))
    part = source.slice(offset, rows)
    assert pairs(part) == expanded(ranges)[offset : offset + rows]
    assert part.num_rows == len(pairs(part))


@given(st.lists(RANGES, max_size=4), st.booleans())
def test_concat(parts, shuffle_first):
    sources = [Source(FILES, tuple(p)) for p in parts]
    if shuffle_first and sources:
        sources[0] = sources[0].take(np.arange(sources[0].num_rows))
    assert pairs(Source.concat(sources)) == [pair for p in parts for pair in expanded(p)]


def test_neighbouring_ranges_are_joined():
    joined = Source.concat([Source(FILES, (SourceRange(0, 0, 3),)), Source(FILES, (SourceRange(0, 3, 2),))])
    assert joined.ranges == (SourceRange(0, 0, 5),)


def test_locate_names_the_file():
    source = Source(FILES, (SourceRange(1, 7, 2), SourceRange(2, 0, 1)))
    assert [source.locate(i) for i in range(3)] == [("b", 7), ("b", 8), ("c", 0)]


def test_block_take_slice_concat_keep_rows_with_their_source():
    data = pa.RecordBatch.from_pydict({"x": [10, 11, 12, 13]})
    block = RowBlock(data, Source(FILES, (SourceRange(0, 0, 4),)))
    moved = RowBlock.concat([block.slice(2, 2), block.take(np.array([1, 0]))])
    assert moved.data.column("x").to_pylist() == [12, 13, 11, 10]
    assert pairs(moved.source) == [(0, 2), (0, 3), (0, 1), (0, 0)]


def test_a_block_whose_source_has_another_length_is_refused():
    with pytest.raises(ValueError, match="2 rows with the source of 3"):
        RowBlock(pa.RecordBatch.from_pydict({"x": [1, 2]}), Source(FILES, (SourceRange(0, 0, 3),)))
