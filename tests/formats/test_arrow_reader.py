"""Parquet and Arrow IPC files: types, bad values, positions, damage, memory."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.formats import arrow_columns
from headrace.formats.arrow_reader import ArrowFiles
from headrace.formats.bad_records import BadRecords
from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_lines import Kind, Reason
from headrace.formats.datasets import open_dataset
from headrace.formats.errors import BadRecordError, ColumnMismatchError, CorruptShardError, ManifestError
from headrace.formats.manifest import Manifest, describe_file, write_manifest
from headrace.formats.reader import FilePosition
from headrace.formats.rows import SourceRange
from headrace.formats.schema import Dense, Label, Schema, SchemaError, Sparse
from tests.support.criteo_text import read_all, rows_of

SCHEMA = Schema(labels=(Label(name="y"),), dense=(Dense(name="d"),), sparse=(Sparse(name="c", encoding="uint64"),))
LISTS = Schema(sparse=(Sparse(name="h", encoding="uint64", multi_hot=True),))
TARGETS = Schema(labels=(Label(name="y", binary=False),))
NO_BINARY_LABEL = "a label is 0 or 1; declare it with binary=False to take any number"


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def ids_of(kind: pa.DataType, values: list[Any], tmp_path: Path, encoding: str, **options: Any) -> list[Any]:
    schema = Schema(sparse=(Sparse(name="c", encoding=encoding),))  # type: ignore[arg-type]
    path = parquet(tmp_path / "ids.parquet", {"c": pa.array(values, kind)})
    return [row[2] for row in rows_of(read_all(ArrowFiles(path, schema, **options)))]


def one_file(tmp_path: Path, column: str, values: Any, schema: Schema = SCHEMA) -> ArrowFiles:
    rows = len(values)
    columns = {"y": pa.array([1] * rows), "d": pa.array([1] * rows), "c": pa.array([1] * rows), column: values}
    return ArrowFiles(parquet(tmp_path / "x.parquet", columns), schema)


def test_the_real_parquet_sample(shared_data: Path) -> None:
    # the two first rows of the file
    names = ("adgroup_id", "userid", "brand")
    schema = Schema(
        labels=(Label(name="clk"),),
        dense=(Dense(name="age_level"),),
        sparse=tuple(Sparse(name=n, encoding="uint64") for n in names),
    )
    reader = ArrowFiles(shared_data / "taobao_display_ad" / "fuxictr_tiny_train.parquet", schema)
    rows = rows_of(read_all(reader))
    assert rows[:2] == [(0, 0, 0.0, 1, 12, 2, 42), (0, 1, 0.0, 2, 43, 1, 2)]
    assert (len(rows), reader.num_rows, reader.rows_in) == (100, 100, 100)


@pytest.mark.parametrize(
    ("kind", "values", "encoding", "expected"),
    [
        (pa.int8(), [0, 127, None], "uint64", [0, 127, None]),
        (pa.uint64(), [2**64 - 1, 2**63, None, 0], "uint64", [2**64 - 1, 2**63, None, 0]),  # L79, L87
        (pa.int64(), [-(2**63), -1, None], "int64", [-(2**63), -1, None]),  # P32
        (pa.int64(), [2**53 + 1, None], "uint64", [2**53 + 1, None]),  # P31: exact, beyond floats
        (pa.int64(), [2**32 - 1, 0], "hex32", [2**32 - 1, 0]),
        (pa.string(), ["ffffffff", "0", "", None, "68001064"], "hex32", [2**32 - 1, 0, None, None, 0x68001064]),  # P18
        (pa.large_string(), ["ffffffffffffffff", None], "hex64", [2**64 - 1, None]),  # L85
        (pa.binary(), [b"12345e67"], "hex32", [0x12345E67]),  # L64
        (pa.large_binary(), [b"A"], "hex32", [10]),
        (pa.string_view(), ["ff", None], "hex32", [255, None]),
        (pa.binary(2), [b"ff", None], "hex32", [255, None]),
        (pa.string(), ["18446744073709551615", None], "uint64", [2**64 - 1, None]),
        (pa.string(), ["-9223372036854775808"], "int64", [-(2**63)]),
        (pa.null(), [None, None], "hex32", [None, None]),  # L93, NVTabular#1865
        (pa.dictionary(pa.int8(), pa.string()), ["ff", None, "1", "ff"], "hex32", [255, None, 1, 255]),
        (pa.dictionary(pa.int32(), pa.int64()), [5, 5, None], "uint64", [5, 5, None]),
    ],
)
def test_ids_of_every_type(tmp_path: Path, kind: Any, values: list[Any], encoding: str, expected: list[Any]) -> None:
    assert ids_of(kind, values, tmp_path, encoding) == expected


@pytest.mark.parametrize(
    ("kind", "value", "encoding", "reason"),
    [
        (pa.int64(), -1, "uint64", "does not fit into uint64"),
        (pa.int32(), -1758995178, "hex32", "does not fit into hex32"),  # P18
        (pa.int64(), 2**32, "hex32", "does not fit into hex32"),
        (pa.uint64(), 2**63, "int64", "does not fit into int64"),
        (pa.string(), "0x1f", "hex32", "not 1 to 8 hexadecimal digits"),  # L66
        (pa.string(), "1.0", "uint64", "not a decimal integer"),
        (pa.string(), "18446744073709551616", "uint64", "does not fit into uint64"),
    ],
)
def test_an_id_that_does_not_fit_is_a_bad_record(
    tmp_path: Path, kind: Any, value: Any, encoding: str, reason: str
) -> None:
    good = 0 if not isinstance(value, str) else "0"
    with pytest.raises(BadRecordError) as caught:
        ids_of(kind, [good, value, good], tmp_path, encoding)
    assert (caught.value.line, caught.value.column) == (2, "c")
    assert (caught.value.offending, caught.value.reason) == (str(value).encode(), reason)
    assert ids_of(kind, [good, value, good], tmp_path, encoding, bad_records="skip") == [0, 0]


def test_ids_written_through_int32_wrap_on_demand(tmp_path: Path) -> None:
    # dlrm#394: 0x97280556 was written as int32
    values = [-1758995178, -1, 2**31 - 1]
    found = ids_of(pa.int32(), values, tmp_path, "hex32", wrap_negative_ids=True)
    assert found == [2535972118, 2**32 - 1, 2**31 - 1]


@pytest.mark.parametrize(
    ("column", "values", "found", "declared"),
    [
        ("c", pa.array([1.0]), "double", "uint64"),
        ("c", pa.array([True]), "bool", "uint64"),
        ("c", pa.array([[1]]), "list", "uint64"),
        ("c", pa.array([0], pa.timestamp("s")), "timestamp", "uint64"),
        ("d", pa.array([[1]]), "list", "int64"),
        ("y", pa.array(["1"]), "string", "float"),
    ],
)
def test_a_type_that_cannot_be_cast_names_file_column_and_both_types(
    tmp_path: Path, column: str, values: Any, found: str, declared: str
) -> None:
    # L93
    reader = one_file(tmp_path, column, values)
    with pytest.raises(ColumnMismatchError, match=rf"the file has {found}.*the schema declares {declared}") as caught:
        read_all(reader)
    assert (caught.value.path, caught.value.column) == (reader.files[0], column)


@pytest.mark.parametrize(
    ("column", "values", "bad_line", "reason"),
    [
        ("y", pa.array([1, None]), 2, "the label is missing"),
        ("y", pa.array([0.0, float("nan")]), 2, "not finite"),
        ("y", pa.array([1.0, 0.5]), 2, NO_BINARY_LABEL),
        ("y", pa.array([0, 1, 0, -1]), 4, NO_BINARY_LABEL),
        ("y", pa.array([2**63], pa.uint64()), 1, NO_BINARY_LABEL),
        ("y", pa.array([1, 2], pa.float32()), 2, NO_BINARY_LABEL),
        ("d", pa.array([260.0, 0.5]), 2, "not a whole number"),
        ("d", pa.array([1.0, float("inf")]), 2, "not finite"),
        ("d", pa.array([1.0, 2.0**63]), 2, "does not fit into int64"),
        ("d", pa.array([1, 2**63], pa.uint64()), 2, "does not fit into int64"),
    ],
)
def test_a_label_or_dense_value_that_does_not_fit(
    tmp_path: Path, column: str, values: Any, bad_line: int, reason: str
) -> None:
    with pytest.raises(BadRecordError) as caught:
        read_all(one_file(tmp_path, column, values))
    assert (caught.value.line, caught.value.column, caught.value.reason) == (bad_line, column, reason)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([-1.5, 2.0, 0.1]),
        pa.array([-1.5, 2.0, 0.1], pa.float32()),
        pa.array([-7, 2, 2**24], pa.int32()),
        pa.array([-1.5, 2.0, 0.25], pa.float16()),
    ],
)
def test_targets_are_any_finite_numbers(tmp_path: Path, values: Any) -> None:
    found = rows_of(read_all(one_file(tmp_path, "y", values, TARGETS)))
    assert [row[2] for row in found] == np.array(values.to_pylist()).astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (pa.array([1.5, None]), "the label is missing"),
        (pa.array([1.5, float("inf")]), "not finite"),
        (pa.array([1.5, float("nan")], pa.float32()), "not finite"),
        (pa.array([1.5, 1e39]), "does not fit into float32"),
    ],
)
def test_a_target_that_is_no_finite_number(tmp_path: Path, values: Any, reason: str) -> None:
    with pytest.raises(BadRecordError) as caught:
        read_all(one_file(tmp_path, "y", values, TARGETS))
    assert (caught.value.line, caught.value.column, caught.value.reason) == (2, "y", reason)


FLOATS = Schema(dense=(Dense(name="d", dtype="float32"),))


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint32(), pa.int64(), pa.uint64()])
def test_an_integer_that_float32_would_round_is_a_bad_record(tmp_path: Path, kind: pa.DataType) -> None:
    held = [0, 5, 2**24 - 1, 2**24, 2**24 + 2, 2**31 - 2**7]
    path = parquet(tmp_path / "x.parquet", {"d": pa.array([*held, 2**24 + 1, None], kind)})
    with pytest.raises(
        BadRecordError, match=r"line 7, column d: b'16777217': an integer that float32 would round; dec"
    ):
        read_all(ArrowFiles(path, FLOATS))
    reader = ArrowFiles(path, FLOATS, bad_records="skip")
    assert [row[2] for row in rows_of(read_all(reader))] == [*held, None]
    exact = ArrowFiles(path, Schema(dense=(Dense(name="d"),)))  # as the error says
    assert [row[2] for row in rows_of(read_all(exact))] == [*held, 2**24 + 1, None]


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**26), 2**26)), max_size=9))
def test_just_the_integers_that_float32_holds_are_taken(values: list[int]) -> None:
    fitted, reasons = arrow_columns.fit(np.array(values, np.int64), Kind.FLOAT32)
    assert [reason == 0 for reason in reasons] == [int(np.float32(value)) == value for value in values]
    assert fitted.tolist() == [float(np.float32(value)) for value in values]


def test_the_ends_of_64_bits_are_powers_of_two() -> None:
    # as the least int64, whose absolute value overflows
    for values in (
        np.array([-(2**63), 2**63 - 1, -(2**24) - 1], np.int64),
        np.array([2**63, 2**64 - 1, 2**53 + 1], np.uint64),
    ):
        assert arrow_columns.fit(values, Kind.FLOAT32)[1].tolist() == [0, Reason.ROUNDED, Reason.ROUNDED]


def test_floats_and_text_are_rounded_to_float32(tmp_path: Path) -> None:
    for values in (pa.array([16777217.0, 0.1]), pa.array(["16777217", "0.1"])):
        path = parquet(tmp_path / "x.parquet", {"d": values})
        assert [row[2] for row in rows_of(read_all(ArrowFiles(path, FLOATS)))] == [2.0**24, float(np.float32(0.1))]


def test_dense_values_of_other_types(tmp_path: Path) -> None:
    for values, expected in (
        (pa.array([True, None]), [1, None]),
        (pa.array([260.0, -3.0]), [260, -3]),
        (pa.array(["7", ""]), [7, None]),
        (pa.array([None, None], pa.null()), [None, None]),
        (pa.array([1, 2], pa.uint16()), [1, 2]),
        (pa.array(np.array([1.5, 2], np.float16)[1:].repeat(2)), [2, 2]),
    ):
        assert [row[3] for row in rows_of(read_all(one_file(tmp_path, "d", values)))] == expected
    reader = one_file(tmp_path, "d", pa.array([0.1, None, 3.0]), FLOATS)
    assert [row[2] for row in rows_of(read_all(reader))] == [np.float32(0.1), None, 3.0]


LIST_VALUES: list[list[int | None] | None] = [[1, 2], [], None, [3, None], [2**64 - 1]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.uint64()),
        pa.large_list(pa.uint64()),
        pa.list_(pa.field("element", pa.uint64(), nullable=False)),  # L94
        pa.list_(pa.dictionary(pa.int8(), pa.uint64())),
    ],
)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_lists_keep_their_lengths_and_nulls(tmp_path: Path, kind: Any, offset: int) -> None:
    # L95, P33; IPC keeps the slice's offset and the type as it is
    values = [v for v in LIST_VALUES if kind.value_field.nullable or v is None or None not in v]
    data = pa.record_batch({"h": pa.array(values, kind)}).slice(offset)
    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(path, data.schema) as writer:
        writer.write_batch(data)
    found = [row[2] for row in rows_of(read_all(ArrowFiles(path, LISTS)))]
    assert found == values[offset:]


def test_a_fixed_size_list_and_an_all_null_one(tmp_path: Path) -> None:
    for kind, values in ((pa.list_(pa.int32(), 2), [[1, 2], None, [3, 4]]), (pa.null(), [None, None])):
        path = parquet(tmp_path / "x.parquet", {"h": pa.array(values, kind)})
        assert [row[2] for row in rows_of(read_all(ArrowFiles(path, LISTS)))] == values


def test_a_bad_element_makes_its_row_bad(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"h": pa.array([[], [1], [2, -1, -2], None, [5]], pa.list_(pa.int64()))})
    reader = ArrowFiles(path, LISTS, bad_records="skip")
    (block,) = read_all(reader)
    assert block.data.column("h").to_pylist() == [[], [1], None, [5]]
    assert block.source.ranges == (SourceRange(0, 0, 2), SourceRange(0, 3, 2))
    with pytest.raises(BadRecordError, match=r"line 3, column h: b'\[2, -1, -2\]': does not fit into uint64"):
        read_all(ArrowFiles(path, LISTS))


def test_more_elements_than_32_bits_count_are_asked_for_in_smaller_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # L85: more than 2 GiB of elements, simulated by a small limit; large_list comes with offsets of 64 bits
    monkeypatch.setattr(arrow_columns, "_MAX_OFFSET", 5)
    values = [[1, 2, 3], None, [4, 5], [6, 7, 8]]
    path = parquet(tmp_path / "x.parquet", {"h": pa.array(values, pa.large_list(pa.int64()))})
    with pytest.raises(OverflowError, match=r"x\.parquet, row 0, column 'h': 8 list elements in 4 rows.*batch_rows"):
        read_all(ArrowFiles(path, LISTS))
    assert [row[2] for row in rows_of(read_all(ArrowFiles(path, LISTS, batch_rows=3)))] == values


def test_missing_raise_in_lists_and_plain_columns(tmp_path: Path) -> None:
    schema = Schema(sparse=(Sparse(name="h", encoding="uint64", multi_hot=True, missing="raise"),))
    path = parquet(tmp_path / "x.parquet", {"h": pa.array([[1], None, [None], []], pa.list_(pa.int64()))})
    assert [r[1] for r in rows_of(read_all(ArrowFiles(path, schema, bad_records="skip")))] == [0, 3]
    schema = Schema(sparse=(Sparse(name="h", encoding="uint64", missing="raise"),))
    path = parquet(tmp_path / "x.parquet", {"h": pa.array([1, None], pa.int64())})
    with pytest.raises(BadRecordError, match=r"line 2, column h: b'None': no id"):
        read_all(ArrowFiles(path, schema))


def criteo_columns(names: tuple[str, str, int], hex_text: bool) -> dict[str, Any]:
    dense, sparse, first = names
    columns: dict[str, Any] = {"label": pa.array([0, 1])}
    columns |= {f"{dense}{i + first}": pa.array([i, None]) for i in range(13)}
    ids = [0x80000000, 5]
    values = pa.array([f"{v:08x}" for v in ids]) if hex_text else pa.array(ids, pa.int64())
    return columns | {f"{sparse}{i + first}": values for i in range(26)}


@pytest.mark.parametrize("names", [("I", "C", 1), ("int_", "cat_", 0)])
@pytest.mark.parametrize("hex_text", [True, False])
def test_both_namings_of_criteo(tmp_path: Path, names: tuple[str, str, int], hex_text: bool) -> None:
    reader = ArrowFiles(parquet(tmp_path / "x.parquet", criteo_columns(names, hex_text)), criteo_schema())
    assert rows_of(read_all(reader)) == [
        (0, 0, 0.0, *range(13), *[0x80000000] * 26),
        (0, 1, 1.0, *[None] * 13, *[5] * 26),
    ]


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    # RecBole#776
    path = parquet(tmp_path / "x.parquet", {"d": [1], "c": [1], "other": [1]})
    with pytest.raises(ColumnMismatchError, match=r"column 'y': is declared by the schema, the file has d, c, other;"):
        read_all(ArrowFiles(path, SCHEMA))
    assert rows_of(read_all(ArrowFiles(path, SCHEMA, columns={"y": "other"}))) == [(0, 0, 1.0, 1, 1)]
    with pytest.raises(SchemaError, match="'z' is no column"):
        ArrowFiles(path, SCHEMA, columns={"z": "other"})


def test_where_criteos_schema_stands_in_for_none_the_error_says_so(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"clk": [1], "price": [2.5]})
    with pytest.raises(
        ColumnMismatchError, match=r"'label': .* clk, price; where no schema is given, Criteo's is taken"
    ):
        read_all(open_dataset("parquet", path))
    path = parquet(tmp_path / "x.parquet", {"cat_3": [1], "price": [2.5]})
    with pytest.raises(ColumnMismatchError, match=r"a schema without labels reads it \(labels=False, --no-labels\)"):
        read_all(open_dataset("parquet", path))


def test_types_may_differ_from_file_to_file(tmp_path: Path) -> None:
    # L93: nullability, int32 and int64, a column of nulls in the first file; L89: dictionaries of each file
    for i, values in enumerate(
        [
            pa.array([None, None]),
            pa.array([1, 2], pa.int32()),
            pa.array([3, None], pa.int64()),
            pa.array(["2", "1"]).dictionary_encode(),
            pa.array(["1", "2"]).dictionary_encode(),
        ]
    ):
        parquet(tmp_path / f"{i}.parquet", {"y": [1, 1], "d": [0, 0], "c": values})
    reader = ArrowFiles(tmp_path, SCHEMA)
    assert [row[4] for row in rows_of(read_all(reader))] == [None, None, 1, 2, 3, None, 2, 1, 1, 2]
    assert reader.num_rows == 10


def test_rows_of_the_declared_types_are_not_copied(tmp_path: Path) -> None:
    schema = Schema(labels=(Label(name="y"),), dense=(Dense(name="d", dtype="float32"),), sparse=(Sparse(name="c"),))
    columns = {
        "y": pa.array([0, 1, 0], pa.float32()),
        "d": pa.array([0.5, None, 2], pa.float32()),
        "c": pa.array([7, None, 2**32 - 1], pa.uint32()),
    }
    reader = ArrowFiles(parquet(tmp_path / "x.parquet", columns), schema)
    (block,) = reader.raw_blocks()
    rows = reader.settle(reader.decode(block)).data
    assert [b.address for c in rows for b in c.buffers() if b] == [
        b.address for c in block.data for b in c.buffers() if b
    ]
    assert rows.to_pydict() == {"y": [0, 1, 0], "d": [0.5, None, 2], "c": [7, None, 2**32 - 1]}
    assert rows.schema == schema.arrow_schema()
    assert reader.bytes_in == 3 * (4 + 4 + 4)  # of the values


@pytest.mark.parametrize("column", ["y", "d"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_floats_of_the_declared_type_are_looked_at(tmp_path: Path, column: str, value: float) -> None:
    schema = Schema(labels=(Label(name="y"),), dense=(Dense(name="d", dtype="float32"),))
    columns = {name: pa.array([0, 1, 1], pa.float32()) for name in ("y", "d")}
    columns[column] = pa.array([0, value, 1], pa.float32())
    reader = ArrowFiles(parquet(tmp_path / "x.parquet", columns), schema, bad_records=BadRecords(mode="skip"))
    assert [row[1] for row in rows_of(read_all(reader))] == [0, 2]
    hidden = pa.Array.from_buffers(  # what stands under a null may be anything
        pa.float32(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, value, 1], np.float32))]
    )
    batch = pa.record_batch({**columns, column: hidden})
    with pa.ipc.new_file(tmp_path / "x.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    reader = ArrowFiles(tmp_path / "x.arrow", schema, bad_records=BadRecords(mode="skip"))
    rows = rows_of(read_all(reader))
    assert [row[2:] for row in rows] == ([(0, 0), (1, 1)] if column == "y" else [(0, 0), (1, None), (1, 1)])


def write_groups(path: Path, form: str, sizes: list[int], first: int) -> int:
    """Row groups or record batches of these sizes; ids count from `first`."""
    schema = pa.schema({"y": pa.int64(), "d": pa.int64(), "c": pa.uint64()})
    with {
        "parquet": lambda: pq.ParquetWriter(path, schema),
        "file": lambda: pa.ipc.new_file(path, schema),
        "stream": lambda: pa.ipc.new_stream(path, schema),
    }[form]() as writer:
        for size in sizes:
            values = np.arange(first, first + size)
            batch = pa.record_batch([values % 2, values, values.astype(np.uint64)], schema=schema)
            writer.write_batch(batch)
            first += size
    return first


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(st.lists(st.integers(0, 7), max_size=5), min_size=1, max_size=3), batch_rows=st.integers(1, 9))
def test_any_row_groups_and_any_resume_give_the_same_rows(
    tmp_path: Path, form: str, files: list[list[int]], batch_rows: int
) -> None:
    # L96: groups and files of no rows included
    first = 0
    paths = [tmp_path / f"{i}.x" for i in range(len(files))]
    for path, sizes in zip(paths, files, strict=True):
        first = write_groups(path, form, sizes, first)
    reader = ArrowFiles(paths, SCHEMA, batch_rows=batch_rows)
    decoded = [reader.decode(block) for block in reader.raw_blocks()]
    rows = [rows_of([reader.settle(d)]) for d in decoded]
    assert [r[4] for r in itertools.chain(*rows)] == list(range(first))
    assert [r[:2] for r in itertools.chain(*rows)] == [(f, i) for f, s in enumerate(files) for i in range(sum(s))]
    assert all(1 <= len(r) <= batch_rows for r in rows)
    assert reader.rows_in == first
    total = reader.bytes_in
    for k, d in enumerate(decoded):
        position = FilePosition.from_dict(d.next_position.to_dict())
        reader.begin(rows_in=7)
        rest = rows_of(read_all(reader, start=position))
        assert rest == list(itertools.chain(*rows[k + 1 :]))
        assert reader.rows_in == 7 + len(rest)
    assert reader.num_rows == (first if form == "parquet" else None)
    assert total >= 8 * first


def test_a_large_row_group_among_small_ones_is_read_in_batches(tmp_path: Path) -> None:
    # P69, L44: 1 M rows in one row group; memory stays that of a batch and the pages it is cut from
    schema = pa.schema({f"c{i}": pa.int64() for i in range(8)})
    path = tmp_path / "x.parquet"
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for rows in (10, 1_000_000, 10):
            writer.write_batch(pa.record_batch([rng.integers(0, 2**62, rows) for _ in range(8)], schema=schema))
    sparse = tuple(Sparse(name=name, encoding="int64") for name in schema.names)
    reader = ArrowFiles(path, Schema(sparse=sparse), batch_rows=10_000)
    before, peak, rows = pa.total_allocated_bytes(), 0, 0
    for block in reader.raw_blocks():
        peak = max(peak, pa.total_allocated_bytes() - before)
        rows += reader.settle(reader.decode(block)).num_rows
    assert rows == 1_000_020
    assert peak < 32 << 20  # the row group has 64 MB
    reader.raw_blocks()  # an early break leaves nothing open
    next(iterator := reader.raw_blocks())
    iterator.close()  # type: ignore[attr-defined]


def test_a_flipped_bit_is_found_by_the_page_checksum(tmp_path: Path) -> None:
    # L91
    columns = {"y": [1] * 1000, "d": [1] * 1000, "c": list(range(1000))}
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = parquet(tmp_path / "x.parquet", columns, **options)
    data = bytearray(path.read_bytes())
    data[data.index((500).to_bytes(8, "little"))] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptShardError, match="CRC"):
        read_all(ArrowFiles(path, SCHEMA))
    found = [row[4] for row in rows_of(read_all(ArrowFiles(path, SCHEMA, verify_page_checksums=False)))]
    assert found[500] == 501  # what a reader without checksums believes


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
@pytest.mark.parametrize("part", [0, 0.2, 0.5, 0.99])
def test_a_cut_file_is_one_kind_of_error(tmp_path: Path, form: str, part: float) -> None:
    # L92
    path = tmp_path / "x"
    write_groups(path, form, [50, 50, 50], 0)
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    if form == "stream" and part == 0.99:
        return  # what is lost is the end mark: all rows are there
    with pytest.raises(CorruptShardError) as caught:
        read_all(ArrowFiles(path, SCHEMA))
    assert caught.value.path == str(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"label\tI1\n")
    with pytest.raises(CorruptShardError, match="neither Parquet nor Arrow IPC"):
        read_all(ArrowFiles(path, SCHEMA))


def test_a_dictionary_code_out_of_range_is_damage(tmp_path: Path) -> None:
    # L86
    codes = pa.array([0, 7], pa.int8())
    damaged = pa.DictionaryArray.from_arrays(codes, pa.array(["1"]), safe=False)
    batch = pa.record_batch({"y": [1, 1], "d": [1, 1], "c": damaged})
    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(CorruptShardError, match="Dictionary indices invalid"):
        read_all(ArrowFiles(path, SCHEMA))


def test_manifest_and_changes(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_groups(path, "parquet", [3], 0)
    write_manifest(tmp_path, Manifest(files={"x.parquet": describe_file(path, rows=4)}))
    with pytest.raises(ManifestError, match="3 rows, the manifest says 4"):
        read_all(ArrowFiles(tmp_path, SCHEMA))
    reader = ArrowFiles(tmp_path, SCHEMA, verify_manifest="off")
    write_groups(path, "parquet", [30], 0)
    with pytest.raises(CorruptShardError, match="changed since it was listed"):
        read_all(reader)


def test_quarantine_describes_what_cannot_be_stored_as_a_line(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"y": [1, 1], "d": [1, 1], "c": [-5, 3]})
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad")
    assert len(rows_of(read_all(ArrowFiles(path, SCHEMA, bad_records=policy)))) == 1
    assert (tmp_path / "bad").read_bytes() == b""
    assert '"offending": "-5", "stored": false' in (tmp_path / "bad.jsonl").read_text()


def test_names_outside_ascii(tmp_path: Path) -> None:
    # L84
    schema = Schema(sparse=(Sparse(name="Kategorie_ä", encoding="uint64"),))
    path = parquet(tmp_path / "ö.parquet", {"Kategorie_ä": [4]})
    assert rows_of(read_all(ArrowFiles(path, schema))) == [(0, 0, 4)]


ONE_ID = Schema(sparse=(Sparse(name="c", encoding="uint64"),))


def id_stream(*batches: list[int]) -> bytes:
    sink = pa.BufferOutputStream()
    schema = pa.schema({"c": pa.uint64()})
    with pa.ipc.new_stream(sink, schema) as writer:
        for ids in batches:
            writer.write_batch(pa.record_batch([pa.array(ids, pa.uint64())], schema))
    return bytes(sink.getvalue())


def test_a_stream_that_is_cut_anywhere_is_no_end(tmp_path: Path) -> None:
    whole, path = id_stream([1, 2], [3], [4]), tmp_path / "x.arrows"
    path.write_bytes(whole)
    assert rows_of(read_all(ArrowFiles(path, ONE_ID))) == [(0, 0, 1), (0, 1, 2), (0, 2, 3), (0, 3, 4)]
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptShardError):
            read_all(ArrowFiles(path, ONE_ID))


def test_a_manifest_stands_in_for_the_mark_of_a_stream_s_end(tmp_path: Path) -> None:
    path = tmp_path / "x.arrows"
    path.write_bytes(id_stream([1, 2])[:-8])  # a writer may just close the stream
    with pytest.raises(CorruptShardError, match=r"end of the stream is not marked, .* 2 rows were read"):
        read_all(ArrowFiles(path, ONE_ID))
    write_manifest(tmp_path, Manifest(files={path.name: describe_file(path, rows=2)}))
    assert rows_of(read_all(ArrowFiles(tmp_path, ONE_ID))) == [(0, 0, 1), (0, 1, 2)]


def test_what_follows_the_end_of_a_stream_is_not_passed_by(tmp_path: Path) -> None:
    (tmp_path / "x.arrows").write_bytes(id_stream([1]) + id_stream([2]))  # as by cat
    with pytest.raises(CorruptShardError, match=r"other bytes behind the end of the stream, .* 1 rows were read"):
        read_all(ArrowFiles(tmp_path / "x.arrows", ONE_ID))


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
def test_a_name_that_is_no_text(tmp_path: Path, form: str) -> None:
    table = pa.table({"c": pa.array([7], pa.uint64())})
    sink = pa.BufferOutputStream()
    if form == "parquet":
        pq.write_table(table, sink)
    else:
        with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table)
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.dat")
    Path(path).write_bytes(bytes(sink.getvalue()))
    assert rows_of(read_all(ArrowFiles(path, ONE_ID))) == [(0, 0, 7)]


def test_lists_of_dictionaries_over_row_groups(tmp_path: Path) -> None:
    schema = Schema(sparse=(Sparse(name="c", multi_hot=True),))
    coded = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), pa.array(["1", "a", None]).dictionary_encode())
    pq.write_table(pa.table({"c": coded}), tmp_path / "x.parquet", row_group_size=1)
    for batch_rows in (1, 2, 100):
        reader = ArrowFiles(tmp_path / "x.parquet", schema, batch_rows=batch_rows)
        assert [row[2] for row in rows_of(read_all(reader))] == [[1, 10], [], [None]]
