"""Delimited lines against a reading of one line at a time."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.bad_lines import BadLine
from headrace.formats.criteo_lines import LineLayout, Reason, parse_lines
from headrace.formats.date_parts import yymmddhh_hour
from headrace.formats.delimited_format import TextField, TextFormat
from headrace.formats.delimited_lines import DelimitedLayout, parse_delimited
from headrace.formats.errors import ColumnMismatchError
from headrace.formats.schema import Dense, Label, Schema, SchemaError, Sparse

SCHEMA = Schema(
    labels=(Label(name="y"),),
    dense=(Dense(name="d"), Dense(name="f", dtype="float32")),
    sparse=(
        Sparse(name="hex"),
        Sparse(name="u", encoding="uint64", missing="raise"),
        Sparse(name="word", encoding="uint64"),
        Sparse(name="hour", encoding="uint64"),
    ),
)
FORMAT = TextFormat(
    name="test",
    columns=("u", "y", "unused", "hex", "d", "f", "date", "word"),
    fields=(
        TextField(column="word", words={"pv": 0, "buy": 7}),
        TextField(column="hour", sources=("date",), part=yymmddhh_hour),
        TextField(column="hex", missing=("-1", "none")),
        TextField(column="d", whole_floats=True),
    ),
)
LAYOUT = DelimitedLayout.of("x", SCHEMA, FORMAT, FORMAT.columns)


def read_field(name: str, text: bytes) -> Any:
    """The value of a schema column, None when missing, or the reason why it is refused."""
    if name == "y":
        return Reason.NO_LABEL if not text else float(text) if text in (b"0", b"1") else Reason.BAD_LABEL
    if name == "hex":
        if text in (b"", b"-1", b"none"):
            return None
        return int(text, 16) if re.fullmatch(rb"[0-9a-fA-F]{1,8}", text) else Reason.BAD_HEX
    if not text:
        return Reason.MISSING_ID if name == "u" else None
    if name == "word":
        return {b"pv": 0, b"buy": 7}.get(text, Reason.BAD_WORD)
    if name == "f":
        return float(np.float32(text)) if re.fullmatch(rb"-?[0-9]+(\.[0-9]+)?", text) else Reason.BAD_FLOAT
    if name == "d" and re.search(rb"[0-9]\.0\Z", text):
        text = text[:-2]
    pattern, low, high = (rb"[0-9]+", 0, 2**64 - 1) if name == "u" else (rb"-?[0-9]+", -(2**63), 2**63 - 1)
    if not re.fullmatch(pattern, text):
        return Reason.BAD_DECIMAL
    value = int(text)
    if not low <= value <= high:
        return Reason.OUT_OF_RANGE
    if name == "hour":
        found = re.fullmatch(rb"([0-9]{2})(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])([01][0-9]|2[0-3])", text.zfill(8))
        month_days = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]  # the dates drawn are of leap years or short
        if not found or int(found[3]) > month_days[int(found[2]) - 1] or value < 0:
            return Reason.BAD_TIME
        return int(found[4])
    return value


def read_lines(text: bytes, max_line_bytes: int) -> tuple[list[tuple[Any, ...]], list[BadLine]]:
    rows, bad, at = [], [], 0
    lines = text.split(b"\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, 11):
        content = line.removesuffix(b"\r")
        end = at + len(content)
        fields = content.split(b",")
        if len(line) > max_line_bytes:
            bad.append(BadLine(number, -1, Reason.OVERSIZED, at, end, at, at + len(line), 0))
        elif not content:
            bad.append(BadLine(number, -1, Reason.BLANK_LINE, at, end, at, at + len(line), 0))
        elif len(fields) != 8:
            bad.append(BadLine(number, -1, Reason.COLUMN_COUNT, at, end, at, at + len(line), len(fields)))
        else:
            values = []
            for column, name in enumerate(SCHEMA.column_names):
                source = FORMAT.columns.index("date" if name == "hour" else name)
                values.append(read_field(name, fields[source]))
                if isinstance(values[-1], Reason):
                    begin = at + len(b",".join(fields[:source])) + (source > 0)
                    span = (begin, begin + len(fields[source]), at, at + len(line))
                    bad.append(BadLine(number, column, values[-1], *span, 8))
                    break
            else:
                rows.append(tuple(values))
        at += len(line) + 1
    return rows, bad


FIELDS = {
    "u": st.one_of(st.integers(0, 2**65).map(str), st.sampled_from(["", "0", "-1", "1.0", "007"])),
    "y": st.sampled_from(["0", "1", "1", "0", "", "2", "-1", "01"]),
    "unused": st.sampled_from(["", "x", '"']),
    "hex": st.sampled_from(["", "ffffffff", "-1", "none", "0", "123456789", "0x1", "ABC", '"ab"']),
    "d": st.one_of(st.integers(-(2**64), 2**64).map(str), st.sampled_from(["", "260.0", ".0", "-0", "1.00", "5.5"])),
    "f": st.sampled_from(["", "3.9", "-0.25", "17", "nan", "1,5"]),
    "date": st.sampled_from(["", "14102100", "14103123", "24022923", "14103200", "14102124", "14001000", "-1", "0"]),
    "word": st.sampled_from(["pv", "buy", "", "PV", "pv "]),
}
LINES = st.one_of(
    st.tuples(*(FIELDS[name] for name in FORMAT.columns)).map(",".join),
    st.just("5,1,x,ff,1,2.5,14102100,pv"),
    st.sampled_from(["", "\r", ",", "1,2,3", "," * 7, "," * 8, "5,1,x,ff,1,2.5,14102100,pv\r", "é"]),
).map(str.encode)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=8), st.booleans(), st.sampled_from([1000, 30]))
def test_as_one_line_at_a_time(lines: list[bytes], final_feed: bool, max_line_bytes: int) -> None:
    text = b"\n".join(lines) + b"\n" * (final_feed and bool(lines))
    batch, bad = parse_delimited(memoryview(text), LAYOUT, first_line=10, max_line_bytes=max_line_bytes)
    expected_rows, expected_bad = read_lines(text, max_line_bytes)
    assert list(bad) == expected_bad
    assert [tuple(row.values()) for row in batch.to_pylist()] == expected_rows
    assert batch.schema.equals(SCHEMA.arrow_schema(), check_metadata=True)


LISTS = Schema(
    sparse=(
        Sparse(name="k", encoding="uint64"),
        Sparse(name="h", encoding="uint64", multi_hot=True),
        Sparse(name="r", multi_hot=True, missing="raise"),
    )
)
LIST_FORMAT = TextFormat(
    name="lists",
    columns=("k", "h", "r"),
    fields=(
        TextField(column="h", list_separator="^", missing=("0",)),
        TextField(column="r", list_separator="|"),
    ),
)
HISTORIES = st.lists(st.sampled_from(["1", "22", "0", "", "18446744073709551615"]), max_size=4).map("^".join)
HEXES = st.lists(st.sampled_from(["a", "ffffffff", "7", "7", ""]), min_size=1, max_size=3).map("|".join)


@given(st.lists(st.tuples(st.sampled_from(["5", "x"]), HISTORIES, HEXES), max_size=8))
def test_lists_in_a_field(lines: list[tuple[str, str, str]]) -> None:
    layout = DelimitedLayout.of("x", LISTS, LIST_FORMAT, LIST_FORMAT.columns)
    text = "".join(",".join(line) + "\n" for line in lines).encode()
    batch, bad = parse_delimited(memoryview(text), layout, first_line=0, max_line_bytes=1000)
    expected, expected_bad = [], []
    for number, (k, h, r) in enumerate(lines, 1):
        if k == "x":
            expected_bad.append((number, 0, Reason.BAD_DECIMAL))
        elif "" in r.split("|"):
            expected_bad.append((number, 2, Reason.MISSING_ID))
        else:
            history = [int(v) if v not in ("", "0") else None for v in h.split("^")] if h else None
            expected.append((5, history, [int(v, 16) for v in r.split("|")]))
    assert [tuple(row.values()) for row in batch.to_pylist()] == expected
    assert [(line.line, line.column, line.reason) for line in bad] == expected_bad


def test_a_bad_element_names_the_field() -> None:
    layout = DelimitedLayout.of("x", LISTS, LIST_FORMAT, LIST_FORMAT.columns)
    _, bad = parse_delimited(memoryview(b"1,2^x^-3,a\n"), layout, first_line=0, max_line_bytes=1000)
    assert list(bad) == [BadLine(1, 1, Reason.BAD_DECIMAL, 2, 8, 0, 10, 3)]


def test_one_column_and_no_columns_of_the_schema() -> None:
    layout = DelimitedLayout.of("x", Schema(sparse=(Sparse(name="a"),)), TextFormat(name="t", columns=("a",)), ("a",))
    batch, bad = parse_delimited(memoryview(b"1\n\nff"), layout, first_line=0, max_line_bytes=9)
    assert (batch.column("a").to_pylist(), [b.reason for b in bad]) == ([1, 255], [Reason.BLANK_LINE])


def labels_of(text: bytes, label: Label, field: TextField) -> tuple[list[Any], list[int]]:
    """(values of the good lines, reasons of the others)"""
    text_format = TextFormat(name="t", columns=("y",), fields=(field,))
    layout = DelimitedLayout.of("x", Schema(labels=(label,)), text_format, ("y",))
    batch, bad = parse_delimited(memoryview(text), layout, first_line=0, max_line_bytes=99)
    return batch.column("y").to_pylist(), [line.reason for line in bad]


def test_targets_are_any_finite_numbers() -> None:
    text = b"-1.5\n2\n1e3\nx\n0.1\nnan\n1e39\n"
    found = labels_of(text, Label(name="y", binary=False), TextField(column="y"))
    assert found == (
        [-1.5, 2, 1000, float(np.float32("0.1"))],
        [Reason.BAD_FLOAT, Reason.BAD_FLOAT, Reason.OUT_OF_RANGE],
    )
    empty = Schema(labels=(Label(name="y", binary=False),), sparse=(Sparse(name="a"),))
    layout = DelimitedLayout.of("x", empty, TextFormat(name="t", columns=("y", "a")), ("y", "a"))
    _, bad = parse_delimited(memoryview(b",ff\n"), layout, first_line=0, max_line_bytes=9)
    assert [line.reason for line in bad] == [Reason.NO_LABEL]


def test_labels_of_words_and_dates_are_binary_too() -> None:
    stars = TextField(column="y", words={"bad": 0, "good": 5})
    with pytest.raises(SchemaError, match="label 'y': t takes 'good' for 5; say binary=False"):
        labels_of(b"good\n", Label(name="y"), stars)
    assert labels_of(b"good\n", Label(name="y", binary=False), stars) == ([5], [])
    hour = TextField(column="y", part=yymmddhh_hour)
    assert labels_of(b"14102101\n14102102\n", Label(name="y"), hour) == ([1], [Reason.BAD_LABEL])
    assert labels_of(b"14102102\n", Label(name="y", binary=False), hour) == ([2], [])


def test_what_a_layout_refuses() -> None:
    with pytest.raises(ColumnMismatchError, match=r"x, column 'date': is needed for 'hour', but test has u, y"):
        DelimitedLayout.of("x", SCHEMA, FORMAT, ("u", "y", "hex", "d", "f", "word"))
    with pytest.raises(ColumnMismatchError, match="is there 2 times"):
        DelimitedLayout.of("x", SCHEMA, FORMAT, (*FORMAT.columns, "u"))
    with pytest.raises(SchemaError, match="multi_hot"):
        DelimitedLayout.of("x", Schema(sparse=(Sparse(name="u", multi_hot=True),)), FORMAT, FORMAT.columns)
    with pytest.raises(SchemaError, match="declare it multi_hot"):
        DelimitedLayout.of("x", Schema(sparse=(Sparse(name="h"),)), LIST_FORMAT, LIST_FORMAT.columns)
    with pytest.raises(SchemaError, match="say uint64"):
        DelimitedLayout.of("x", Schema(sparse=(Sparse(name="word"),)), FORMAT, FORMAT.columns)
    misspelt = TextFormat(name="t", columns=("a",), fields=(TextField(column="kindd"),))
    with pytest.raises(ColumnMismatchError, match="'kindd': is described by a field of t, but neither the schema nor"):
        DelimitedLayout.of("x", Schema(sparse=(Sparse(name="a"),)), misspelt, ("a",))
    several = replace(misspelt, spare_fields=True)
    assert DelimitedLayout.of("x", Schema(sparse=(Sparse(name="a"),)), several, ("a",)).num_columns == 1
    for options in ({"separator": ""}, {"separator": "\n"}, {"separator": "ä"}, {"header": True}, {"columns": ()}):
        with pytest.raises(ValueError, match="t: "):
            TextFormat(**{"name": "t", "columns": ("a",), **options})  # type: ignore[arg-type]


CRITEO_LIKE = Schema(
    labels=(Label(name="y"),),
    dense=(Dense(name="d"),),
    sparse=(
        Sparse(name="a"),
        Sparse(name="b", encoding="hex64", missing="raise"),
        Sparse(name="c", encoding="uint64"),
        Sparse(name="e", encoding="int64"),
    ),
)
PIECES = st.one_of(
    st.sampled_from([b"\t", b"\t", b"\t", b"\n", b"\n", b"\r\n", b"\r", b"", b"-", b"0", b"1", b"+1", b" ", b"\xff"]),
    st.integers(-(2**65), 2**65).map(lambda n: b"%d" % n),
    st.integers(0, 2**66).map(lambda n: b"%x" % n),
    st.just(b"1\t-5\tff\tffffffffffffffff\t18446744073709551615\t\n"),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=40).map(b"".join), st.sampled_from([1000, 20]))
def test_tabs_give_what_the_native_parser_gives(text: bytes, max_line_bytes: int) -> None:
    names = CRITEO_LIKE.column_names
    layout = DelimitedLayout.of("x", CRITEO_LIKE, TextFormat(name="t", separator="\t", columns=names), names)
    batch, bad = parse_delimited(memoryview(text), layout, first_line=3, max_line_bytes=max_line_bytes)
    native_layout = LineLayout.from_schema(CRITEO_LIKE)
    native = parse_lines(text, native_layout, first_line=3, max_line_bytes=max_line_bytes)
    assert batch.equals(native_layout.record_batch(native.columns))
    reasons = [Reason.BAD_LABEL if line.reason == Reason.NO_LABEL else line.reason for line in bad]
    assert [line._replace(reason=r) for line, r in zip(bad, reasons, strict=True)] == list(native.faults)
