"""A part of the rows: the same as all rows with the others left out, for every format, block size and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.formats.arrow_reader import ArrowFiles
from headrace.formats.bad_records import BadRecords
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.errors import BadRecordError, ManifestError
from headrace.formats.file_reader import FileReader
from headrace.formats.manifest import Manifest, describe_file, write_manifest
from headrace.formats.rows import SourceRange
from headrace.formats.schema import Schema, Sparse
from tests.support.criteo_text import read_all, rows_of, write

SCHEMA = Schema(sparse=(Sparse(name="a"), Sparse(name="b", encoding="uint64")))


def make(folder: Path, form: str, files: list[list[int]], size: int) -> FileReader[Any]:
    """Files of rows with ids 0, 1, ..; a negative one is a bad record."""
    for i, ids in enumerate(files):
        if form == "text":
            write(folder / f"{i}", b"".join(b"%x\t%d\n" % (abs(n), n) for n in ids))
        else:
            columns = {"a": pa.array([f"{abs(n):x}" for n in ids], pa.string()), "b": pa.array(ids, pa.int64())}
            pq.write_table(pa.table(columns), folder / f"{i}", row_group_size=3)
    paths = [folder / f"{i}" for i in range(len(files))]
    if form == "text":
        return CriteoFiles(paths, SCHEMA, bad_records="skip", block_bytes=size)
    return ArrowFiles(paths, SCHEMA, bad_records="skip", batch_rows=size)


@pytest.mark.parametrize("form", ["text", "parquet"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.lists(st.integers(-2, 30).filter(bool), max_size=12), min_size=1, max_size=3),
    size=st.integers(1, 9),
    data=st.data(),
)
def test_the_selected_rows_of_any_files(
    tmp_path: Path, form: str, files: list[list[int]], size: int, data: st.DataObject
) -> None:
    ranges = []
    for file, ids in enumerate(files):
        first = data.draw(st.integers(0, len(ids)))
        ranges.append(SourceRange(file, first, data.draw(st.integers(0, len(ids) - first))))
    reader = make(tmp_path, form, files, size)
    all_rows, whole_digest = rows_of(read_all(reader)), reader.digest
    reader.select(ranges)
    assert reader.digest != whole_digest
    wanted = {(r.file, row) for r in ranges for row in range(r.first_row, r.first_row + r.rows)}
    expected = [row for row in all_rows if row[:2] in wanted]
    decoded = [reader.decode(block) for block in reader.raw_blocks()]
    parts = [rows_of([reader.settle(d)]) for d in decoded]
    assert [row for part in parts for row in part] == expected
    assert reader.num_rows == reader.rows_in == len(wanted)
    assert reader.rows_skipped == len(wanted) - len(expected)
    for k, d in enumerate(decoded):
        rest = rows_of(read_all(reader, start=d.next_position))
        assert rest == [row for part in parts[k + 1 :] for row in part]


def test_bad_records_outside_are_nobodys_business(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"bad\n1\t1\nbad\n2\t2\nbad\n")
    reader = CriteoFiles(path, SCHEMA)
    reader.select([SourceRange(0, 1, 1)])
    assert rows_of(read_all(reader)) == [(0, 1, 1, 1)]
    reader.select([SourceRange(0, 1, 2)])
    with pytest.raises(BadRecordError, match="line 3"):
        read_all(reader)
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / "q")
    reader = CriteoFiles(path, SCHEMA, bad_records=policy)
    reader.select([SourceRange(0, 1, 3)])
    for _ in range(2):
        assert (len(rows_of(read_all(reader))), reader.rows_skipped) == (2, 1)
    assert (tmp_path / "q").read_bytes() == b"bad\n"


def test_a_file_that_ends_too_early_is_another_file(tmp_path: Path) -> None:
    reader = make(tmp_path, "text", [[1, 2, 3]], 100)
    reader.select([SourceRange(0, 1, 3)])
    with pytest.raises(ValueError, match="ends after 3 rows, but rows up to 4 are selected"):
        read_all(reader)
    reader = make(tmp_path, "text", [[]], 100)
    reader.select([SourceRange(0, 0, 1)])
    with pytest.raises(ValueError, match="ends after 0 rows"):
        read_all(reader)


def test_a_manifest_is_checked_where_the_end_is_selected(tmp_path: Path) -> None:
    make(tmp_path, "text", [[1, 2, 3]], 100)
    write_manifest(tmp_path, Manifest(files={"0": describe_file(tmp_path / "0", rows=4)}))
    reader = CriteoFiles(tmp_path, SCHEMA)
    reader.select([SourceRange(0, 0, 2)])
    assert len(rows_of(read_all(reader))) == 2
    reader.select([SourceRange(0, 0, 3)])
    with pytest.raises(ManifestError, match="3 rows, the manifest says 4"):
        read_all(reader)


@pytest.mark.parametrize(
    "ranges",
    [
        [SourceRange(0, 0, 2), SourceRange(0, 1, 2)],
        [SourceRange(0, 0, 1), SourceRange(0, 2, 1)],
        [SourceRange(1, 0, 1)],
    ],
)
def test_what_cannot_be_selected(tmp_path: Path, ranges: list[SourceRange]) -> None:
    with pytest.raises(ValueError, match="range"):
        make(tmp_path, "text", [[1, 2, 3]], 100).select(ranges)


def test_a_range_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of file number 23, counted from 0 in the order given, but there is one file"):
        make(tmp_path, "text", [[1]], 100).select([SourceRange(23, 0, 1)])


def test_ranges_that_touch_are_one(tmp_path: Path) -> None:
    reader = make(tmp_path, "text", [[1, 2, 3]], 1)
    reader.select([SourceRange(0, 1, 1), SourceRange(0, 2, 1), SourceRange(0, 3, 0)])
    assert [row[3] for row in rows_of(read_all(reader))] == [2, 3]
