"""Files to rows: positions, policies, manifests, threads."""

from __future__ import annotations

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.formats import criteo_reader, line_faults
from headrace.formats.bad_lines import BadLine
from headrace.formats.bad_records import BadRecords
from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.errors import BadRecordError, BadRecordLimitError, CorruptShardError, ManifestError
from headrace.formats.manifest import Manifest, describe_file, write_manifest
from headrace.formats.reader import DecodedBlock, FilePosition
from headrace.formats.rows import SourceRange
from headrace.formats.schema import Label, Schema, SchemaError, Sparse
from tests.support.criteo_text import SMALL, read_all, rows_of, write

GOOD = b"1\t1\t2\ta\tb\n"


def numbered(first: int, count: int) -> bytes:
    return b"".join(b"%d\t%d\t\t%x\t\n" % (i % 2, i, i) for i in range(first, first + count))


def error_of(tmp_path: Path, data: bytes, schema: Schema = SMALL, **options: Any) -> BadRecordError:
    reader = CriteoFiles(write(tmp_path / "x.tsv", data), schema, **options)
    with pytest.raises(BadRecordError) as caught:
        read_all(reader)
    assert caught.value.file == reader.files[0]
    return caught.value


def test_rows_over_files_with_their_places(tmp_path: Path) -> None:
    write(tmp_path / "day_10", numbered(5, 2))
    write(tmp_path / "day_2.gz", numbered(3, 2))
    write(tmp_path / "day_1", b"")  # L77: no rows, no error
    write(tmp_path / "day_0", numbered(0, 3))
    reader = CriteoFiles(tmp_path, SMALL)
    assert [Path(f).name for f in reader.files] == ["day_0", "day_1", "day_2.gz", "day_10"]
    assert rows_of(read_all(reader)) == [
        (0, 0, 0.0, 0, None, 0, None),
        (0, 1, 1.0, 1, None, 1, None),
        (0, 2, 0.0, 2, None, 2, None),
        (2, 0, 1.0, 3, None, 3, None),
        (2, 1, 0.0, 4, None, 4, None),
        (3, 0, 1.0, 5, None, 5, None),
        (3, 1, 0.0, 6, None, 6, None),
    ]
    assert (reader.rows_in, reader.rows_skipped, reader.bytes_in) == (7, 0, len(numbered(0, 7)))
    assert reader.num_rows is None


@pytest.mark.parametrize("schema", [SMALL, criteo_schema(), criteo_schema(labels=False)])
def test_a_block_has_the_schema_of_the_dataset_always(tmp_path: Path, schema: Schema) -> None:
    # L16: also when no row is left
    expected = schema.arrow_schema(labels=bool(schema.labels))
    reader = CriteoFiles(
        write(tmp_path / "x", b"bad\n" + b"x" * 200 + b"\nbad\n"),
        schema,
        bad_records="skip",
        block_bytes=1,
        max_line_bytes=100,
    )
    blocks = read_all(reader)
    assert len(blocks) == 3
    for block in blocks:
        assert block.num_rows == 0
        assert block.data.schema.equals(expected, check_metadata=True)
    assert (reader.rows_in, reader.rows_skipped, reader.bytes_in) == (3, 3, 209)


def test_bad_lines_split_the_source_ranges(tmp_path: Path) -> None:
    data = b"bad\n" + GOOD * 2 + b"\n" + GOOD + b"bad\nbad\n" + GOOD + b"bad\n"
    reader = CriteoFiles(write(tmp_path / "x", data), SMALL, bad_records="skip")
    (block,) = read_all(reader)
    assert block.source.ranges == (SourceRange(0, 1, 2), SourceRange(0, 4, 1), SourceRange(0, 7, 1))
    assert (reader.rows_in, reader.rows_skipped) == (9, 5)


LINES = st.sampled_from(
    [
        GOOD,
        GOOD,
        GOOD,
        b"0\t-5\t\t\tffffffff\n",
        b"1\t1\t2\ta\tb\r\n",
        b"\n",
        b"bad\n",
        b"1\t+1\t2\ta\tb\n",
        b"9" * 60 + b"\n",
    ]
)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.lists(LINES, max_size=12).map(b"".join), min_size=1, max_size=3),
    block_bytes=st.integers(1, 80),
    cut=st.booleans(),
)
def test_any_block_size_and_any_resume_give_the_same_rows(
    tmp_path: Path, suffix: str, files: list[bytes], block_bytes: int, cut: bool
) -> None:
    if cut and files[-1]:
        files[-1] = files[-1][:-1]  # no final line feed
    paths = [write(tmp_path / f"day_{i}{suffix}", data) for i, data in enumerate(files)]
    options: dict[str, Any] = {"bad_records": "skip", "max_line_bytes": 50}
    whole = CriteoFiles(paths, SMALL, **options)
    expected = rows_of(read_all(whole))
    reader = CriteoFiles(paths, SMALL, block_bytes=block_bytes, **options)
    decoded = [reader.decode(block) for block in reader.raw_blocks()]
    assert rows_of([reader.settle(d) for d in decoded]) == expected
    assert (reader.rows_in, reader.rows_skipped) == (whole.rows_in, whole.rows_skipped)
    assert whole.rows_in == len(expected) + whole.rows_skipped
    done = 0
    for block in decoded:
        assert block.lines == block.rows.num_rows + len(block.bad)
        done += block.rows.num_rows
        position = FilePosition.from_dict(json.loads(json.dumps(block.next_position.to_dict())))
        rest = CriteoFiles(paths, SMALL, block_bytes=block_bytes, **options)
        assert rows_of(read_all(rest, start=position)) == expected[done:]


def test_resume_of_a_resume(tmp_path: Path) -> None:
    # L22: positions are absolute
    reader = CriteoFiles(write(tmp_path / "x.gz", numbered(0, 50)), SMALL, block_bytes=40)
    position = FilePosition(0, 0, 0)
    found = []
    while True:
        reader.begin(rows_in=reader.rows_in, rows_skipped=reader.rows_skipped)
        block = next(reader.raw_blocks(position), None)
        if block is None:
            break
        decoded = reader.decode(block)
        assert decoded.position == position
        found.append(reader.settle(decoded))
        position = decoded.next_position
    assert [row[1] for row in rows_of(found)] == list(range(50))
    assert reader.rows_in == 50


def test_a_position_beyond_the_files_is_refused(tmp_path: Path) -> None:
    reader = CriteoFiles(write(tmp_path / "x", GOOD), SMALL)
    with pytest.raises(ValueError, match="file number 1"):
        list(reader.raw_blocks(FilePosition(1, 0, 0)))
    with pytest.raises(ValueError, match="no line starts at byte 3"):
        list(reader.raw_blocks(FilePosition(0, 3, 0)))
    with pytest.raises(CorruptShardError, match="ends before the position"):
        list(reader.raw_blocks(FilePosition(0, 300, 3)))


def test_decoding_in_many_threads_gives_the_rows_in_order(tmp_path: Path) -> None:
    reader = CriteoFiles(write(tmp_path / "x", numbered(0, 5000)), SMALL, block_bytes=300)
    with ThreadPoolExecutor(4) as pool:
        blocks = [reader.settle(d) for d in pool.map(reader.decode, reader.raw_blocks())]
    assert [row[3] for row in rows_of(blocks)] == list(range(5000))


def test_decode_raises_nothing_for_bad_lines(tmp_path: Path) -> None:
    reader = CriteoFiles(write(tmp_path / "x", GOOD + b"bad\n"), SMALL)
    decoded: DecodedBlock = reader.decode(next(reader.raw_blocks()))
    assert [bad.line for bad in decoded.bad] == [2]
    with pytest.raises(BadRecordError, match="line 2"):
        reader.settle(decoded)
    assert (reader.rows_in, reader.rows_skipped) == (0, 0)
    good = reader.decode(next(CriteoFiles(write(tmp_path / "y", GOOD), SMALL).raw_blocks()))
    assert len(good.text) == 0  # a good block does not hold its text


@pytest.mark.parametrize(
    ("line", "column", "offending", "reason", "hint"),
    [
        (b"1\t+1\t2\ta\tb", "d1", b"+1", "not a decimal integer", ""),  # L78
        (b"1\t1\t 1\ta\tb", "d2", b" 1", "not a decimal integer", "blanks"),
        (b"1\t1.0\t2\ta\tb", "d1", b"1.0", "not a decimal integer", "float"),
        (b"1\t0x1f\t2\ta\tb", "d1", b"0x1f", "not a decimal integer", "0x"),
        (b"1\t1\t9223372036854775808\ta\tb", "d2", b"9223372036854775808", "does not fit into int64", ""),
        (b"1\t1\t2\t123456789\tb", "a", b"123456789", "not 1 to 8 hexadecimal digits", ""),
        (b"1\t1\t2\t0x1f\tb", "a", b"0x1f", "hexadecimal", "0x"),  # L66
        (b"1\t1\t2\ta\t\xd9\xa1", "b", b"\xd9\xa1", "hexadecimal", ""),
        (b"1\t1\t2\ta\x00\tb", "a", b"a\x00", "hexadecimal", ""),  # L84
        (b'1\t1\t2\t"a"\tb', "a", b'"a"', "hexadecimal", "quotes"),  # L71
        (b"5\t1\t2\ta\tb", "y", b"5", "a label is 0 or 1", ""),
        (b"\t1\t2\ta\tb", "y", b"", "a label is 0 or 1", ""),
        (b"y\td1\td2\ta\tb", "y", b"y", "a label is 0 or 1", ""),
        (b"", "", b"", "blank line", "end of a file"),  # L72
        (b"1\t1\t2\ta", "", b"1\t1\t2\ta", "4 columns where the schema declares 5", "without label"),
        (b"1,1,2,a,b", "", b"1,1,2,a,b", "1 columns where the schema declares 5", "commas"),
        (b"1;1;2;a;b", "", b"1;1;2;a;b", "1 columns where the schema declares 5", "semicolons"),
        (b"PAR1\x15\x04", "", b"PAR1\x15\x04", "1 columns", "this is Parquet: open_dataset"),
        (b"a.arrow\x00\x00ustar", "", b"a.arrow\x00\x00ustar", "1 columns", "tar shards are --dataset tar"),
        (b"ARROW1\x00\x00", "", b"ARROW1\x00\x00", "1 columns", "this is Arrow: open_dataset"),
        (b"1\t1\t2\ta\tb\r0\t1\t2\ta\tb", "", b"1\t1\t2\ta\tb\r0\t1\t2\ta\tb", "9 columns", "carriage return"),  # L73
        (b"\xef\xbb\xbf1\t1\t2\ta\tb", "y", b"\xef\xbb\xbf1", "a label is 0 or 1", "byte order mark"),
    ],
)
def test_an_error_names_file_line_column_bytes_and_a_hint(
    tmp_path: Path, line: bytes, column: str, offending: bytes, reason: str, hint: str
) -> None:
    error = error_of(tmp_path, GOOD * 2 + line + b"\n" + GOOD)
    assert (error.line, error.column, error.offending) == (3, column, offending)
    assert reason in error.reason
    assert hint in error.hint
    assert bool(hint) == bool(error.hint)


def test_other_separators_are_told_before_a_lost_label(tmp_path: Path) -> None:
    schema = Schema(
        labels=(Label(name="y"),), sparse=(Sparse(name="a"),)
    )  # without label it has 1 column, as this file
    error = error_of(tmp_path, b"0,5\n", schema)
    assert (error.reason, error.hint[:36]) == (
        "1 columns where the schema declares 2",
        "the columns look separated by commas",
    )
    assert "labels=False, --no-labels" in error_of(tmp_path, b"5\n", schema).hint


def test_a_file_without_labels_where_they_are_declared(tmp_path: Path) -> None:
    # P20, DATASETS "Criteo text" 2: test.txt has 39 columns
    row = b"\t".join([b"1"] * 13 + [b"5a9ed9b0"] * 26) + b"\n"
    error = error_of(tmp_path, row, criteo_schema())
    assert (error.line, error.reason) == (1, "39 columns where the schema declares 40")
    assert "without label" in error.hint
    assert read_all(CriteoFiles(tmp_path / "x.tsv", criteo_schema(labels=False)))[0].num_rows == 1
    error = error_of(tmp_path, b"1\t" + row, criteo_schema(labels=False))
    assert (error.line, error.reason) == (1, "40 columns where the schema declares 39")
    assert "with a label" in error.hint


def test_a_comma_separated_file_fails_at_its_first_line(tmp_path: Path) -> None:
    # DATASETS "Criteo text" 6
    error = error_of(tmp_path, b",".join([b"1"] * 40) + b"\n", criteo_schema())
    assert (error.line, error.reason) == (1, "1 columns where the schema declares 40")
    assert "','" in error.hint


def test_a_header_line_is_named(tmp_path: Path) -> None:
    assert "header" in error_of(tmp_path, b"label\tI1\tI2\tC1\tC2\n" + GOOD).hint


def test_utf16_is_named(tmp_path: Path) -> None:
    assert "UTF-16" in error_of(tmp_path, "1\t1\t2\ta\tb\n".encode("utf-16")).hint
    assert "UTF-16" in error_of(tmp_path, "1,1\n".encode("utf-16")).hint


def test_a_file_of_another_kind_is_never_skipped_in_silence(tmp_path: Path) -> None:
    """Whatever the mode and the blocks: 100 lines from the first on with another number of columns."""
    odd = b"1\t1\t2\ta\n"
    for block_bytes in (1, 1 << 20):
        options: dict[str, Any] = {"bad_records": "skip", "block_bytes": block_bytes}
        error = error_of(tmp_path, odd * 1000, **options)
        assert error.line == 100
        assert "not a file of this schema" in error.reason
        for data, rows in ((odd * 99, 0), (odd * 99 + GOOD + odd * 200, 1), (GOOD + odd * 200, 1)):
            assert len(rows_of(read_all(CriteoFiles(write(tmp_path / "y", data), SMALL, **options)))) == rows
    first, second = write(tmp_path / "1", odd * 60), write(tmp_path / "2", odd * 60)  # each file for itself
    assert rows_of(read_all(CriteoFiles([first, second], SMALL, bad_records="skip"))) == []


def test_missing_ids_are_refused_where_the_schema_says_so(tmp_path: Path) -> None:
    schema = Schema(sparse=(Sparse(name="a", missing="raise"), Sparse(name="b")))
    error = error_of(tmp_path, b"a\t\n\tb\n", schema)
    assert (error.line, error.column) == (2, "a")
    assert "missing='raise'" in error.reason


@pytest.mark.parametrize("block_bytes", [10, 1 << 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_oversized_line_says_where_it_exceeds(tmp_path: Path, block_bytes: int, suffix: str) -> None:
    # L75: the same error whether the line fits into a block or not
    path = write(tmp_path / f"x{suffix}", GOOD + b"1" * 500 + b"\n" + GOOD)
    reader = CriteoFiles(path, SMALL, block_bytes=block_bytes, max_line_bytes=100)
    with pytest.raises(BadRecordError) as caught:
        read_all(reader)
    assert (caught.value.line, caught.value.column) == (2, "")
    assert caught.value.reason == f"row exceeds 100 bytes at byte {len(GOOD) + 100}"
    assert caught.value.offending == b"1" * 77 + b"..."


def test_a_line_of_100_megabytes_is_one_bad_record(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x.gz", "wb") as file:
        file.write(GOOD)
        for _ in range(100):
            file.write(bytes(1 << 20))
        file.write(b"\n" + GOOD)
    quarantine = BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad")
    reader = CriteoFiles(tmp_path / "x.gz", SMALL, bad_records=quarantine)
    assert [row[1] for row in rows_of(read_all(reader))] == [0, 2]
    assert (reader.rows_in, reader.rows_skipped) == (3, 1)
    assert (tmp_path / "bad").read_bytes() == b""
    assert json.loads((tmp_path / "bad.jsonl").read_text())["stored"] is False


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_limits_are_met_at_the_same_line_whatever_the_blocks(tmp_path: Path, block_bytes: int) -> None:
    data = (GOOD + b"bad\n") * 20
    error = error_of(tmp_path, data, bad_records=BadRecords(mode="skip", max_count=4), block_bytes=block_bytes)
    assert isinstance(error, BadRecordLimitError)
    assert (error.line, error.bad, error.lines) == (10, 5, 10)


def test_quarantined_lines_are_a_dataset_of_their_own(tmp_path: Path) -> None:
    bad = [b"1\t+1\t2\ta\tb", b"\xff\x00", b"1\t1\t2\ta\tg\r", b""]
    write(tmp_path / "x", GOOD + b"\n".join(bad) + b"\n" + GOOD)
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad.tsv")
    reader = CriteoFiles(tmp_path / "x", SMALL, bad_records=policy)
    assert [row[1] for row in rows_of(read_all(reader))] == [0, 5]
    assert (tmp_path / "bad.tsv").read_bytes() == b"\n".join(bad) + b"\n"
    assert [json.loads(line)["line"] for line in (tmp_path / "bad.tsv.jsonl").open()] == [2, 3, 4, 5]
    # The folder still means the data alone, and the repaired lines can be read.
    assert [Path(f).name for f in CriteoFiles(tmp_path, SMALL).files] == ["x"]
    (tmp_path / "bad.tsv").write_bytes((tmp_path / "bad.tsv").read_bytes().replace(b"+1", b"1"))
    replay = CriteoFiles(tmp_path / "bad.tsv", SMALL, bad_records="skip")
    assert rows_of(read_all(replay)) == [(0, 0, 1.0, 1, 2, 10, 11)]


def dataset(tmp_path: Path, suffix: str = ".gz") -> dict[str, Path]:
    """Two files of two gzip members (or plain) and their manifest."""
    paths = {}
    for i, name in enumerate((f"day_0{suffix}", f"day_1{suffix}")):
        path = tmp_path / name
        halves = [numbered(100 * i, 50), numbered(100 * i + 50, 50)]
        path.write_bytes(b"".join(map(gzip.compress, halves)) if suffix == ".gz" else b"".join(halves))
        paths[name] = path
    files = {name: describe_file(path, rows=100) for name, path in paths.items()}
    write_manifest(tmp_path, Manifest(files=files))
    return paths


@pytest.mark.parametrize("verify", ["off", "size", "full"])
def test_a_manifest_gives_the_number_of_rows(tmp_path: Path, verify: Any) -> None:
    dataset(tmp_path)
    reader = CriteoFiles(tmp_path, SMALL, verify_manifest=verify, block_bytes=64)
    assert reader.num_rows == (None if verify == "off" else 200)
    assert len(rows_of(read_all(reader))) == 200
    assert len(rows_of(read_all(reader, start=FilePosition(1, 0, 0)))) == 100


def test_num_rows_is_unknown_when_a_file_is(tmp_path: Path) -> None:
    dataset(tmp_path)
    write(tmp_path / "day_2", GOOD)
    reader = CriteoFiles(tmp_path / "day_*", SMALL)
    assert reader.num_rows is None
    assert len(rows_of(read_all(reader))) == 201


def test_a_file_that_the_manifest_does_not_list_is_refused_for_folders(tmp_path: Path) -> None:
    dataset(tmp_path)
    write(tmp_path / "day_2", GOOD)
    with pytest.raises(
        ManifestError,
        match=r"1 files are not in its manifest, the first is 'day_2'; name the files to read \(a pattern",
    ):
        CriteoFiles(tmp_path, SMALL)
    assert len(CriteoFiles(tmp_path, SMALL, verify_manifest="off").files) == 3


def test_a_cut_at_a_member_boundary_is_seen_through_the_manifest(tmp_path: Path) -> None:
    # L81
    path = dataset(tmp_path)["day_1.gz"]
    cut = path.read_bytes()[: len(gzip.compress(numbered(100, 50)))]
    path.write_bytes(cut)
    with pytest.raises(ManifestError, match="cut, or changed") as caught:
        read_all(CriteoFiles(tmp_path, SMALL))
    assert caught.value.path == str(path)
    assert len(rows_of(read_all(CriteoFiles(tmp_path, SMALL, verify_manifest="off")))) == 150


@pytest.mark.parametrize("resumed", [False, True])
def test_rows_are_compared_at_the_end_of_each_file(tmp_path: Path, resumed: bool) -> None:
    paths = dataset(tmp_path, suffix="")
    data = paths["day_0"].read_bytes()
    paths["day_0"].write_bytes(data.replace(b"\n", b"\t", 1))  # same size, a row less
    position = None
    if resumed:
        # Resumed behind the damage: the lines before are taken from the position, so the rest must add up.
        offset = data.index(b"\n", 500) + 1
        position = FilePosition(0, offset, data.count(b"\n", 0, offset) - 1)
    reader = CriteoFiles(tmp_path, SMALL, bad_records="skip", block_bytes=100)
    with pytest.raises(ManifestError, match="99 rows, the manifest says 100"):
        read_all(reader, start=position)


def test_full_verification_sees_a_changed_byte(tmp_path: Path) -> None:
    path = dataset(tmp_path, suffix="")["day_1"]
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    assert len(rows_of(read_all(CriteoFiles(tmp_path, SMALL)))) == 200
    with pytest.raises(ManifestError, match="BLAKE2b"):
        read_all(CriteoFiles(tmp_path, SMALL, verify_manifest="full"))


def test_a_missing_file_of_the_manifest_is_refused_for_folders(tmp_path: Path) -> None:
    # L111: absence is not a smaller dataset
    paths = dataset(tmp_path)
    paths["day_0.gz"].unlink()
    with pytest.raises(ManifestError, match=r"1 files of the manifest are missing, the first is 'day_0\.gz'"):
        CriteoFiles(tmp_path, SMALL)
    assert CriteoFiles(paths["day_1.gz"], SMALL).num_rows == 100


def test_an_unsound_manifest_is_refused_unless_it_is_off(tmp_path: Path) -> None:
    dataset(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ManifestError):
        CriteoFiles(tmp_path, SMALL)
    assert len(rows_of(read_all(CriteoFiles(tmp_path, SMALL, verify_manifest="off")))) == 200


def test_bad_lines_count_as_rows_of_the_manifest(tmp_path: Path) -> None:
    path = write(tmp_path / "x", GOOD + b"bad\n" + GOOD + b"\n\n")
    write_manifest(tmp_path, Manifest(files={"x": describe_file(path, rows=3)}))
    reader = CriteoFiles(tmp_path, SMALL, bad_records="skip")
    assert len(rows_of(read_all(reader))) == 2
    assert reader.rows_in == reader.num_rows == 3


def test_a_damaged_file_gives_its_rows_then_an_error(tmp_path: Path) -> None:
    # DATASETS 12: whole archives were cut at their host
    data = gzip.compress(numbered(0, 500))
    path = tmp_path / "day_0.gz"
    path.write_bytes(data[:-20])
    reader = CriteoFiles(path, SMALL, block_bytes=100)
    found = []
    with pytest.raises(CorruptShardError) as caught:
        found.extend(reader.settle(reader.decode(block)) for block in reader.raw_blocks())
    assert caught.value.rows_salvaged == len(rows_of(found)) > 400


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"block_bytes": 0}, "block_bytes"),
        ({"max_line_bytes": 2**40}, "max_line_bytes"),
        ({"verify_manifest": "yes"}, "verify"),
        ({"bad_records": "ignore"}, "mode"),
        ({"bad_records": "quarantine"}, r'give BadRecords\(mode="quarantine", quarantine_path='),
    ],
)
def test_options_are_checked_at_construction(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CriteoFiles(write(tmp_path / "x", GOOD), SMALL, **options)


def test_files_and_schema_are_checked_at_construction(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CriteoFiles(tmp_path / "absent", SMALL)
    with pytest.raises(SchemaError, match="multi_hot"):
        CriteoFiles(write(tmp_path / "x", GOOD), Schema(sparse=(Sparse(name="a", multi_hot=True),)))


def test_memory_is_flat_over_many_blocks(tmp_path: Path) -> None:
    reader = CriteoFiles(write(tmp_path / "x", GOOD * 100_000), SMALL, block_bytes=10_000)
    before = pa.total_allocated_bytes()
    peak = 0
    for block in reader.raw_blocks():
        reader.settle(reader.decode(block))
        peak = max(peak, pa.total_allocated_bytes() - before)
    del block  # the last one's text
    assert pa.total_allocated_bytes() == before
    assert peak < 200_000


def test_names_beyond_ascii(tmp_path: Path) -> None:
    # L84
    schema = Schema(sparse=(Sparse(name="类别"),))
    error = error_of(tmp_path / "." / "", b"zz\n", schema)
    assert error.column == "类别"
    (tmp_path / "日").mkdir()
    assert len(rows_of(read_all(CriteoFiles(write(tmp_path / "日" / "día.gz", GOOD), SMALL)))) == 1


def epochs(reader: CriteoFiles, count: int) -> list[tuple[int, int, int]]:
    """(rows, rows_in, rows_skipped) of each of `count` passes."""
    return [(len(rows_of(read_all(reader))), reader.rows_in, reader.rows_skipped) for _ in range(count)]


@pytest.mark.parametrize("block_bytes", [1, 20, 1 << 20])
def test_each_epoch_counts_from_its_start(tmp_path: Path, block_bytes: int) -> None:
    path = write(tmp_path / "x", (GOOD + b"bad\n") * 5)
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad", max_count=7)
    reader = CriteoFiles(path, SMALL, bad_records=policy, block_bytes=block_bytes)
    assert epochs(reader, 3) == [(5, 10, 5)] * 3
    assert (tmp_path / "bad").read_bytes() == b"bad\n" * 5  # once, whatever the number of epochs
    assert [json.loads(line)["line"] for line in (tmp_path / "bad.jsonl").open()] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("before", [True, False])
def test_a_resume_counts_on(tmp_path: Path, before: bool) -> None:
    path = write(tmp_path / "x", (GOOD + b"bad\n") * 20)
    policy = BadRecords(mode="skip", max_count=12)
    first = CriteoFiles(path, SMALL, bad_records=policy, block_bytes=20)
    blocks = first.raw_blocks()
    while first.rows_skipped < 10:
        decoded = first.decode(next(blocks))
        first.settle(decoded)
    rest = CriteoFiles(path, SMALL, bad_records=policy, block_bytes=20)
    counts = {"rows_in": first.rows_in, "rows_skipped": first.rows_skipped}
    if before:
        rest.begin(**counts)
    blocks = rest.raw_blocks(decoded.next_position)
    if not before:
        rest.begin(**counts)
    with pytest.raises(BadRecordLimitError) as caught:
        list(map(rest.settle, map(rest.decode, blocks)))
    assert (caught.value.line, caught.value.bad, caught.value.lines) == (26, 13, 26)
    with pytest.raises(BadRecordLimitError) as caught:  # the next pass starts at 0 again
        read_all(rest)
    assert (caught.value.line, caught.value.bad, caught.value.lines) == (26, 13, 26)


@pytest.mark.parametrize(
    ("counts", "error"),
    [
        ({"rows_in": -1}, ValueError), ({"rows_in": 1, "rows_skipped": 2}, ValueError), ({"rows_in": 1.0}, TypeError),
        ({"rows_in": 5, "rows_skipped": True}, TypeError),
    ],
)  # fmt: skip
def test_counts_of_a_resume_are_checked(tmp_path: Path, counts: dict[str, Any], error: type[Exception]) -> None:
    reader = CriteoFiles(write(tmp_path / "x", GOOD), SMALL)
    with pytest.raises(error, match="rows_"):
        reader.begin(**counts)


def test_a_block_that_raises_may_be_settled_again(tmp_path: Path) -> None:
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad", max_count=3)
    reader = CriteoFiles(write(tmp_path / "x", b"bad\n" * 5 + GOOD), SMALL, bad_records=policy)
    decoded = reader.decode(next(reader.raw_blocks()))
    for _ in range(3):
        with pytest.raises(BadRecordLimitError, match=r"^4 bad records in 4 lines"):
            reader.settle(decoded)
    assert (reader.rows_in, reader.rows_skipped, reader.bytes_in) == (0, 0, 0)
    assert not (tmp_path / "bad").exists()


def test_the_kind_of_a_file_is_told_from_settled_blocks_alone(tmp_path: Path) -> None:
    odd = b"1\t1\t2\ta\n"
    options: dict[str, Any] = {"bad_records": BadRecords(mode="skip", max_count=90), "block_bytes": 1}
    for _ in range(2):
        error = error_of(tmp_path, odd * 200, **options)
        assert (type(error), error.line) == (BadRecordLimitError, 91)  # the limit comes first, whatever the blocks
        options["block_bytes"] = 1 << 20
    reader = CriteoFiles(write(tmp_path / "y", odd * 100), SMALL, bad_records="skip")
    decoded = reader.decode(next(reader.raw_blocks()))
    for _ in range(2):
        with pytest.raises(BadRecordError, match=r"line 100: .*not a file of this schema"):
            reader.settle(decoded)


def test_raise_describes_one_line_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = []

    def describe(bad: BadLine, **kwargs: Any) -> BadRecordError:
        described.append(bad.line)
        return line_faults.describe(bad, **kwargs)

    monkeypatch.setattr(criteo_reader, "describe", describe)
    assert error_of(tmp_path, GOOD + b"bad\n" * 50).line == 2
    assert described == [2]


@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_a_file_that_changes_between_epochs_is_an_error(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, GOOD * 10)
    reader = CriteoFiles(path, SMALL)
    assert len(rows_of(read_all(reader))) == 10
    write(path, GOOD * 5 + numbered(0, 9))
    with pytest.raises(CorruptShardError, match="changed since it was listed") as caught:
        read_all(reader)
    assert caught.value.path == str(path)


def test_a_file_that_is_cut_while_it_is_read_gives_no_part_of_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "x", GOOD * 3)
    reader = CriteoFiles(path, SMALL, block_bytes=12)
    blocks = reader.raw_blocks()
    found = [reader.settle(reader.decode(next(blocks)))]
    os.truncate(path, len(GOOD) * 2 + 9)  # "1 1 2 a b" without its line feed would be a row
    with pytest.raises(CorruptShardError, match="changed since it was listed"):
        found.extend(reader.settle(reader.decode(block)) for block in blocks)
    assert [row[1] for row in rows_of(found)] == [0, 1]
