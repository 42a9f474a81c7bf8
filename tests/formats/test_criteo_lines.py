"""The grammar of a line, on the native parser and on its pure-Python twin."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats import _criteo_py, criteo_lines
from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_lines import LineLayout, ParsedLines, Reason
from headrace.formats.schema import Dense, Label, Schema, SchemaError, Sparse
from tests.support.criteo_text import SMALL

Parse = Callable[..., ParsedLines]

by_single_lines = partial(criteo_lines.parse_lines, tiles=False)
PARSERS: list[Parse] = [criteo_lines.parse_lines, by_single_lines, _criteo_py.parse_lines]
LAYOUT = LineLayout.from_schema(SMALL)


@pytest.fixture(params=PARSERS, ids=["native", "single lines", "python"])
def parse(request: pytest.FixtureRequest) -> Parse:
    found: Parse = request.param
    return found


def rows(parsed: ParsedLines, layout: LineLayout = LAYOUT) -> list[list[Any]]:
    batch = layout.record_batch(parsed.columns)
    batch.validate(full=True)
    assert batch.num_rows == parsed.rows
    assert parsed.lines == parsed.rows + len(parsed.faults)
    return [list(row.values()) for row in batch.to_pylist()]


def layouts(**options: Any) -> tuple[LineLayout, LineLayout]:
    """Layouts whose checked column ``x`` (dense without options) is the second of three, and the last of two."""
    labels = (Label(name="y"),)
    end = (Sparse(name="end"),)
    if not options:
        dense = (Dense(name="x"),)
        parts = Schema(labels=labels, dense=dense, sparse=end), Schema(labels=labels, dense=dense)
    else:
        x = Sparse(name="x", **options)
        parts = Schema(labels=labels, sparse=(x, *end)), Schema(labels=labels, sparse=(x,))
    return LineLayout.from_schema(parts[0]), LineLayout.from_schema(parts[1])


def field(parse: Parse, text: bytes, **options: Any) -> Any:
    """Value of the field `text`, or the reason why it is refused (checked to be about exactly these bytes).

    It is tried in the middle and at the end of a line, far from and close to the end of the text, among good lines and
    bad ones, so that all paths meet it.
    """
    inner, last = layouts(**options)
    results = []
    for layout, line in ((inner, b"1\t%b\t00000000" % text), (inner, b"1\t%b\t" % text), (last, b"1\t%b" % text)):
        good = b"0\t0" + b"\t" * (layout.num_columns - 2) + b"\n"
        for after in (b"", b"\n", b"\r\n", b"\n" + b"0\n" * 40, b"\n" + good * 70):
            data = line + after
            parsed = parse(data, layout)
            if parsed.faults and parsed.faults[0].line == 1:
                fault = parsed.faults[0]
                assert (fault.column, data[fault.begin : fault.end].rstrip(b"\r")) == (1, text.rstrip(b"\r"))
                assert data[fault.line_begin : fault.line_end] == data.split(b"\n")[0]
                results.append(Reason(fault.reason))
            else:
                results.append(rows(parsed, layout)[0][1])
    if not text.endswith(b"\r"):  # at the end of a line it would be part of the line end
        assert results == results[:1] * 15
    return results[0]


BAD_DECIMALS = [
    # L78, DATASETS 1.1
    b"+1", b" 1", b"1 ", b"1.0", b"0x1f", b"1_0", b"-", b"--1", b"-+1", b"1-", b"1e3", b"abc", b"\x001", b"1\x00",
    "٣".encode(), b"\xff", b"\xb21", b'"1"', b"1\r", b"nan", b"99999999999999999999x", b"12345678x", b"/", b":", b"1:",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_DECIMALS)
def test_dense_refuses_what_is_no_decimal(parse: Parse, text: bytes) -> None:
    assert field(parse, text) == Reason.BAD_DECIMAL
    assert field(parse, text, encoding="uint64") == Reason.BAD_DECIMAL


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0), (b"-0", 0), (b"7", 7), (b"-3", -3), (b"007", 7), (b"1234567", 1234567), (b"12345678", 12345678),
        (b"123456789", 123456789), (b"2147483648", 2**31),  # L69
        (b"9223372036854775807", 2**63 - 1), (b"-9223372036854775808", -(2**63)),
        (b"9223372036854775808", Reason.OUT_OF_RANGE), (b"-9223372036854775809", Reason.OUT_OF_RANGE),
        (b"18446744073709551615", Reason.OUT_OF_RANGE), (b"9" * 30, Reason.OUT_OF_RANGE),
        (b"0" * 30 + b"9223372036854775807", 2**63 - 1), (b"0" * 5000, 0), (b"1" + b"0" * 5000, Reason.OUT_OF_RANGE),
        (b"", None),  # L67
    ],
)  # fmt: skip
def test_dense_int64(parse: Parse, text: bytes, value: Any) -> None:
    assert field(parse, text) == value
    assert field(parse, text, encoding="int64") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0), (b"9223372036854775808", 2**63), (b"18446744073709551615", 2**64 - 1),  # L79
        (b"18446744073709551614", 2**64 - 2), (b"18446744073709551616", Reason.OUT_OF_RANGE),
        (b"-1", Reason.BAD_DECIMAL), (b"", None),
    ],
)  # fmt: skip
def test_ids_uint64(parse: Parse, text: bytes, value: Any) -> None:
    assert field(parse, text, encoding="uint64") == value


BAD_HEX = [
    # L66
    b"0x1f", b" 1f", b"1f ", b"1_0", b"-1", b"+1f", "١٢".encode(), b"g", b"0000000g", b"g0000000",
    b"000\x0000", b"\x00",
    b"\xff\xff\xff\xff\xff\xff\xff\xff", b"1f\r", b"@", b"`", b"/", b":", b"G", b"0000000@", b"0000000`", b"0000000/",
    b"0000000:", b"\x10\x11\x12\x13\x14\x15\x16\x17", b"68fd1e6 ", b"68fd1e6\xe9",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_HEX)
def test_hex_refuses_what_is_no_hexadecimal_digit(parse: Parse, text: bytes) -> None:
    assert field(parse, text, encoding="hex32") == Reason.BAD_HEX
    assert field(parse, text, encoding="hex64") == Reason.BAD_HEX
    assert field(parse, b"0123abcd" + text, encoding="hex64") == Reason.BAD_HEX


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0), (b"00000000", 0), (b"1f", 31), (b"80000000", 2**31), (b"ffffffff", 2**32 - 1),  # P18
        (b"FFFFFFFF", 2**32 - 1), (b"AbCdEf09", 0xABCDEF09), (b"68001064", 0x68001064),  # L64
        (b"12345e67", 0x12345E67),  # L64
        (b"9727dd16", -1758995178 % 2**32),  # P18
        (b"68fd1e64", 1761418852), (b"123456789", Reason.BAD_HEX), (b"", None),
    ],
)  # fmt: skip
def test_hex32(parse: Parse, text: bytes, value: Any) -> None:
    assert field(parse, text, encoding="hex32") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"123456789", 0x123456789), (b"ffffffffffffffff", 2**64 - 1), (b"0123456789abcDEF", 0x0123456789ABCDEF),
        (b"0" * 16, 0), (b"0" * 17, Reason.BAD_HEX), (b"8000000000000000", 2**63), (b"", None),
    ],
)  # fmt: skip
def test_hex64(parse: Parse, text: bytes, value: Any) -> None:
    assert field(parse, text, encoding="hex64") == value


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_in_every_place_of_a_hex_field(byte: int) -> None:
    layout = layouts(encoding="hex32")[0]
    for place in range(8):
        text = bytearray(b"12345678")
        text[place] = byte
        data = b"1\t%b\t\n0\t\t\n0\t\t\n0\t\t\n0\t\t\n" % bytes(text)
        native, single, twin = (parse(data, layout) for parse in PARSERS)
        assert rows(native, layout) == rows(single, layout) == rows(twin, layout)
        assert native.faults == single.faults == twin.faults


@pytest.mark.parametrize("options", [{}, {"encoding": "hex32"}, {"encoding": "uint64"}, {"encoding": "hex64"}])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
def test_every_byte_in_every_line_of_a_tile(options: dict[str, str], length: int) -> None:
    """A field with one byte changed, in each line of 70 in turn: all that a tile holds, and the lines after it."""
    layout = layouts(**options)[0]
    line = b"1\t%b\t\n" % (b"1234567890123456"[:length])
    values = criteo_lines.parse_lines(line * 70, layout).columns[1].to_pylist()
    for byte in range(256):
        row = byte % 70
        changed = bytearray(line * 70)
        changed[row * len(line) + 2 + byte % length] = byte
        native, single = (parse(bytes(changed), layout) for parse in PARSERS[:2])
        assert native.batch.equals(single.batch)
        assert native.faults == single.faults
        if length < 9 and chr(byte).isdecimal():  # 16 hexadecimal digits are no hex32
            assert native.columns[1].to_pylist()[:row] == values[:row]


@pytest.mark.parametrize("label", [b"", b"2", b"-1", b"01", b"1.0", b" 1", b"+1", b"label", b"\x00", b"5a9ed9b0"])
def test_a_label_is_0_or_1(parse: Parse, label: bytes) -> None:
    parsed = parse(b"1\t1\t2\t3\t4\n%b\t1\t2\t3\t4\n0\t1\t2\t3\t4\n" % label, LAYOUT)
    assert [row[0] for row in rows(parsed)] == [1.0, 0.0]
    (fault,) = parsed.faults
    assert fault == (2, 0, Reason.BAD_LABEL, 10, 10 + len(label), 10, 18 + len(label), 5)


def test_missing_is_not_zero(parse: Parse) -> None:
    # L67, P20: an empty field is null in every column, the last one included (DATASETS 9)
    parsed = parse(b"1\t\t0\t\t00000000\n0\t0\t\t0\t\n", LAYOUT)
    assert rows(parsed) == [[1.0, None, 0, None, 0], [0.0, 0, None, 0, None]]
    assert [column.null_count for column in parsed.columns] == [0, 1, 1, 1, 1]


def test_missing_id_is_refused_where_the_schema_says_so(parse: Parse) -> None:
    assert field(parse, b"", missing="raise") == Reason.MISSING_ID
    assert field(parse, b"0", missing="raise") == 0


def test_nulls_of_a_refused_row_leave_no_trace(parse: Parse) -> None:
    parsed = parse(b"1\t\t\t\tzz\n1\t5\t6\t7\t8\n1\t\t\t\t\t\n1\t5\t6\t7\t8\n", LAYOUT)
    assert rows(parsed) == [[1.0, 5, 6, 7, 8]] * 2
    assert [column.null_count for column in parsed.columns] == [0] * 5


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_line_ends(parse: Parse, ending: bytes, final: bool) -> None:
    # L73
    data = ending.join([b"1\t1\t2\ta\tb", b"0\t3\t4\tc\t"]) + (ending if final else b"")
    assert rows(parse(data, LAYOUT)) == [[1.0, 1, 2, 10, 11], [0.0, 3, 4, 12, None]]


def test_a_lone_carriage_return_ends_no_line(parse: Parse) -> None:
    # L73: one line of 9 fields, not two rows
    parsed = parse(b"1\t1\t2\ta\tb\r0\t3\t4\tc\td\n", LAYOUT)
    assert [(f.line, f.reason, f.found) for f in parsed.faults] == [(1, Reason.COLUMN_COUNT, 9)]
    parsed = parse(b"1\t1\t2\ta\tb\r\r\n", LAYOUT)
    assert [(f.column, f.reason, f.begin, f.end) for f in parsed.faults] == [(4, Reason.BAD_HEX, 8, 10)]


@pytest.mark.parametrize("blank", [b"", b"\r"])
def test_blank_lines_are_refused_and_counted(parse: Parse, blank: bytes) -> None:
    # L72
    parsed = parse(b"1\t1\t2\ta\tb\n%b\n1\t1\t2\ta\tb\n" % blank, LAYOUT)
    assert [(f.line, f.column, f.reason) for f in parsed.faults] == [(2, -1, Reason.BLANK_LINE)]
    assert parsed.rows == 2


def test_a_blank_line_is_refused_even_with_a_single_column(parse: Parse) -> None:
    layout = LineLayout.from_schema(Schema(sparse=(Sparse(name="a"),)))
    parsed = parse(b"1\n\n\r\n2", layout)
    assert rows(parsed, layout) == [[1], [2]]
    assert [f.line for f in parsed.faults] == [2, 3]


@pytest.mark.parametrize("fields", [1, 4, 6, 39])
def test_column_count(parse: Parse, fields: int) -> None:
    # DATASETS 43: a line with a column too few shifts nothing
    parsed = parse(b"1\t1\t2\ta\tb\n" + b"\t".join([b"1"] * fields) + b"\n1\t1\t2\ta\tb", LAYOUT)
    assert [(f.line, f.column, f.reason, f.found) for f in parsed.faults] == [(2, -1, Reason.COLUMN_COUNT, fields)]
    assert parsed.rows == 2


def test_quotes_swallow_nothing(parse: Parse) -> None:
    # L71
    parsed = parse(b'1\t1\t2\ta\tb\n1\t1\t2\t"a\tb\n1\t1\t2\ta\tb"\n0\t1\t2\ta\tb\n', LAYOUT)
    assert [(f.line, f.column, f.reason) for f in parsed.faults] == [(2, 3, Reason.BAD_HEX), (3, 4, Reason.BAD_HEX)]
    assert [row[0] for row in rows(parsed)] == [1.0, 0.0]


def test_a_line_of_just_the_limit_passes_a_longer_one_does_not(parse: Parse) -> None:
    # L75; the carriage return counts
    data = b"1\t12\t2\ta\tb\n1\t123\t2\ta\tb\n1\t12\t2\ta\tb\r\n"
    parsed = parse(data, LAYOUT, max_line_bytes=10)
    assert parsed.rows == 1
    assert [(f.line, f.reason, f.begin, f.end) for f in parsed.faults] == [
        (2, Reason.OVERSIZED, 11, 22),
        (3, Reason.OVERSIZED, 23, 33),
    ]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_positive(parse: Parse, limit: int) -> None:
    with pytest.raises(ValueError, match="max_line_bytes"):
        parse(b"", LAYOUT, max_line_bytes=limit)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken(parse: Parse, kind: Callable[[bytes], Any]) -> None:
    assert rows(parse(kind(b"1\t1\t2\ta\tb\n"), LAYOUT)) == [[1.0, 1, 2, 10, 11]]


def test_no_lines_no_rows(parse: Parse) -> None:
    # L77
    parsed = parse(b"", LAYOUT)
    assert (parsed.rows, parsed.lines, len(parsed.faults)) == (0, 0, 0)
    assert LAYOUT.record_batch(parsed.columns).schema == SMALL.arrow_schema()


def test_labels_and_order_of_the_kinds(parse: Parse) -> None:
    schema = Schema(
        labels=(Label(name="click"), Label(name="buy")),
        dense=(Dense(name="d"),),
        sparse=(
            Sparse(name="h", encoding="hex64"),
            Sparse(name="u", encoding="uint64"),
            Sparse(name="i", encoding="int64"),
            Sparse(name="x", encoding="hex32"),
        ),
    )
    layout = LineLayout.from_schema(schema)
    data = b"0\t1\t-5\tffffffffffffffff\t18446744073709551615\t-9223372036854775808\tff\n"
    assert rows(parse(data, layout), layout) == [[0.0, 1.0, -5, 2**64 - 1, 2**64 - 1, -(2**63), 255]]


def test_the_columns_do_not_need_the_text(parse: Parse) -> None:
    data = bytearray(b"1\t1\t2\ta\tb\n")
    parsed = parse(data, LAYOUT)
    data[:] = b"x" * len(data)
    assert rows(parsed) == [[1.0, 1, 2, 10, 11]]


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (Schema(dense=(Dense(name="price", dtype="float32"),)), "price"),
        (Schema(sparse=(Sparse(name="history", multi_hot=True),)), "history"),
        (Schema(labels=(Label(name="target", binary=False),)), "target"),
        (Schema(), "without columns"),
    ],
)
def test_a_schema_that_the_text_cannot_hold_is_refused(schema: Schema, named: str) -> None:
    with pytest.raises(SchemaError, match=named):
        LineLayout.from_schema(schema)


FIELDS = st.sampled_from(
    [
        b"", b"0", b"1", b"-1", b"7", b"12345678", b"9223372036854775808", b"18446744073709551616", b"deadBEEF", b"0x1",
        b"123456789", b"ffffffffffffffff", b"g", b" ", b"\x00", b"\xff\xfe", b"\r", b"1.0", b"-", b'"', b"0" * 17,
    ]
)  # fmt: skip
LINES = st.lists(st.lists(FIELDS, min_size=4, max_size=6).map(b"\t".join), max_size=30)
GOOD_LINES = st.lists(
    st.tuples(
        st.sampled_from([b"0", b"1"]),
        st.one_of(st.just(b""), st.integers(-(2**63), 2**63 - 1).map(lambda v: b"%d" % v)),
        st.one_of(st.just(b""), st.integers(0, 10**8).map(lambda v: b"%d" % v)),
        st.one_of(st.just(b""), st.integers(0, 2**32 - 1).map(lambda v: b"%08x" % v)),
        st.one_of(st.just(b""), st.integers(0, 2**32 - 1).map(lambda v: b"%X" % v)),
    ).map(b"\t".join),
    max_size=40,
)
LAYOUTS = [
    LAYOUT,
    LineLayout.from_schema(
        Schema(
            dense=(Dense(name="d"),),
            sparse=tuple(
                Sparse(name=e, encoding=e, missing=m)  # type: ignore[arg-type]
                for e, m in [("hex64", "key"), ("uint64", "raise"), ("int64", "drop"), ("hex32", "raise")]
            ),
        )
    ),
]


@settings(max_examples=300, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=200),
        LINES.map(b"\n".join),
        GOOD_LINES.map(b"\r\n".join),
        st.tuples(GOOD_LINES, LINES, GOOD_LINES).map(lambda t: b"\n".join(t[0] + t[1] + t[2]) + b"\n"),
        st.lists(st.sampled_from([b"\t", b"\n", b"\r", b"1", b"f", b"-", b"\x00", b"\xc3"]), max_size=80).map(b"".join),
    ),
    layout=st.sampled_from(LAYOUTS),
    max_line_bytes=st.sampled_from([1, 20, 1 << 20]),
)
def test_native_and_python_agree_on_any_bytes(data: bytes, layout: LineLayout, max_line_bytes: int) -> None:
    native, single, twin = (parse(data, layout, max_line_bytes=max_line_bytes) for parse in PARSERS)
    assert rows(native, layout) == rows(single, layout) == rows(twin, layout)
    assert native.faults == single.faults == twin.faults
    assert [c.null_count for c in native.columns] == [c.null_count for c in twin.columns]
    assert native[1:3] == single[1:3] == twin[1:3]


@settings(max_examples=100, deadline=None)
@given(lines=GOOD_LINES)
def test_good_rows_come_back_as_they_were_written(lines: list[bytes]) -> None:
    parsed = criteo_lines.parse_lines(b"".join(line + b"\n" for line in lines), LAYOUT)
    assert not parsed.faults
    for line, row in zip(lines, rows(parsed), strict=True):
        fields = line.split(b"\t")
        expected = [float(fields[0])]
        expected += [int(f) if f else None for f in fields[1:3]]
        expected += [int(f, 16) if f else None for f in fields[3:]]
        assert row == expected


def test_many_missing_values_over_all_bit_positions() -> None:
    """Null bitmaps over byte borders, for every number of rows up to 70."""
    lines = [
        b"1\t%b\t%b\t%b\t" % (b"" if i % 3 else b"5", b"" if i % 5 else b"6", b"" if i % 2 else b"7") for i in range(70)
    ]
    for count in range(71):
        parsed = criteo_lines.parse_lines(b"\n".join(lines[:count]), LAYOUT)
        assert rows(parsed) == [
            [1.0, None if i % 3 else 5, None if i % 5 else 6, None if i % 2 else 7, None] for i in range(count)
        ]
        assert parsed.columns[3].null_count == count // 2


LIBC = ctypes.CDLL(None, use_errno=True)
WIDE = LineLayout.from_schema(
    Schema(sparse=(Sparse(name="h", encoding="hex64"), Sparse(name="u", encoding="uint64"), Sparse(name="x")))
)


@pytest.mark.parametrize(
    "data",
    [
        b"1\t1\t2\t68fd1e64\tdeadbeef\n",
        b"1\t1\t2\t68fd1e64\tdeadbeef",
        b"1\t1\t2\t68fd1e64\tdeadbeef\r",
        b"1\t1234567\t1234567",
        b"1\t1\t2\t68fd1e64\t",
        b"1\t1\t2\t68fd1e6",
        b"1",
        b"\t",
        b"\r",
        b"\n",
        b"1\t1\t2\t",
        b"1\t1\t-",
        b"0123456789abcdef\t12345678\t01234567",
        b"0123456789abcdef",
        b"0123456789abcde",  # one digit short of two loads
        b"0123456789abcdef\t1234567",
        b"0123456789abcdef\t\t",
    ],
)
@pytest.mark.parametrize("layout", [LAYOUT, WIDE], ids=["small", "wide"])
def test_never_reads_outside_the_buffer(data: bytes, layout: LineLayout) -> None:
    """The text ends where an unreadable page begins, then begins where one ends: a stray load is a crash."""
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 3 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for guard in (base, base + 2 * page):
        assert LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
    try:
        expected = _criteo_py.parse_lines(data, layout)
        for start in (page, 2 * page - len(data)):
            ctypes.memmove(base + start, data, len(data))
            text = memoryview((ctypes.c_ubyte * len(data)).from_address(base + start)).cast("B")
            parsed = criteo_lines.parse_lines(text, layout)
            assert rows(parsed, layout) == rows(expected, layout)
            assert parsed.faults == expected.faults
    finally:
        for guard in (base, base + 2 * page):
            LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)


def test_one_allocation_holds_all_columns() -> None:
    layout = LineLayout.from_schema(criteo_schema())
    data = b"".join(b"1" + b"\t12345" * 13 + b"\t68fd1e64" * 26 + b"\n" for _ in range(1000))
    parsed = criteo_lines.parse_lines(data, layout)
    addresses = [column.buffers()[1].address for column in parsed.columns]
    assert all(address % 64 == 0 for address in addresses)
    assert addresses == sorted(addresses)
    # 4 + 13 * 8 + 26 * 4 bytes a row, and at most 1,215 bytes of padding a column
    assert addresses[-1] - addresses[0] <= 1000 * 212 + 40 * 1215
    assert [len(column.buffers()[1]) for column in parsed.columns] == [4000] + [8000] * 13 + [4000] * 26


def test_lines_are_numbered_from_the_first_one(parse: Parse) -> None:
    parsed = parse(b"bad\n1\t1\t2\ta\tb\n\n", LAYOUT, first_line=41)
    assert [(f.line, f.reason) for f in parsed.faults] == [(42, Reason.COLUMN_COUNT), (44, Reason.BLANK_LINE)]


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_more_lines_than_said_are_refused(parse: Parse, lines: int) -> None:
    data = b"1\t1\t2\ta\tb\n" * 3
    with pytest.raises(ValueError, match=f"more than {lines} lines"):
        parse(data, LAYOUT, lines=lines)
    assert parse(data, LAYOUT, lines=3).rows == parse(data, LAYOUT, lines=2**40).rows == 3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("around", [b"", b"\n", b"\t\n", b"x\n"])
def test_the_shortest_rows_have_room(parse: Parse, layout: LineLayout, end: bytes, around: bytes) -> None:
    """The columns have room for what the text can hold: rows of nothing but what must be there are the most."""
    row = b"\t".join(b"0" if required else b"" for required in layout.required)
    for count in range(1, 18):
        parsed = parse(around * 3 + b"\n".join([row] * count) + end + (around * 3 if end else b""), layout)
        assert parsed.rows == count
        assert rows(parsed, layout) == rows(parsed, layout)[:1] * count


def test_a_block_of_line_feeds_needs_next_to_no_memory() -> None:
    layout = LineLayout.from_schema(criteo_schema())
    before = pa.total_allocated_bytes()
    parsed = criteo_lines.parse_lines(b"\n" * (1 << 20), layout)
    assert (parsed.rows, parsed.lines, len(parsed.faults)) == (0, 1 << 20, 1 << 20)
    assert pa.total_allocated_bytes() - before < 8 << 20
    assert parsed.faults.table.nbytes == 64 << 20
