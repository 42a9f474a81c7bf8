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


LISTS = st.lists(st.sampled_from("abcde"), min_size=3, max_size=5).map(tuple)


@given(st.lists(st.tuples(LISTS, RANGES, st.booleans()), max_size=4))
def test_concat_of_other_file_lists_keeps_each_row_with_its_file(parts):
    sources = [Source(files, tuple(ranges)) for files, ranges, _ in parts]
    sources = [s.take(np.arange(s.num_rows)) if part[2] else s for s, part in zip(sources, parts, strict=True)]
    joined = Source.concat(sources)
    assert [joined.locate(i) for i in range(joined.num_rows)] == [
        (files[file], row) for files, ranges, _ in parts for file, row in expanded(ranges)
    ]


def test_the_lists_of_two_readers_are_merged():
    first, second = Source(("a", "b"), (SourceRange(1, 0, 2),)), Source(("c", "b"), (SourceRange(0, 5, 1),))
    joined = Source.concat([first, second])
    assert joined == Source(("a", "b", "c"), (SourceRange(1, 0, 2), SourceRange(2, 5, 1)))


@pytest.mark.parametrize("longer_first", [False, True])
def test_a_list_that_begins_another_stays_as_it_is(longer_first):
    long, short = Source(FILES, (SourceRange(2, 0, 1),)), Source(FILES[:1], (SourceRange(0, 0, 1),))
    joined = Source.concat([long, short] if longer_first else [short, long])
    assert joined.files is FILES
    assert sorted(pairs(joined)) == [(0, 0), (2, 0)]


def test_a_file_that_is_listed_twice_keeps_its_numbers():
    twice = Source(("a", "b", "a"), (SourceRange(2, 0, 1),))
    assert Source.concat([twice, twice]).ranges == (SourceRange(2, 0, 1), SourceRange(2, 0, 1))
    joined = Source.concat([twice, Source(("b",), (SourceRange(0, 0, 1),))])
    assert (joined.files, joined.ranges) == (("a", "b", "a"), (SourceRange(2, 0, 1), SourceRange(1, 0, 1)))


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
