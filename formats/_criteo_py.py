"""Pure-Python twin of the native parser, written from the grammar in `criteo_lines.py`: slow, short, obvious."""

from __future__ import annotations

import re

import pyarrow as pa

from headrace.formats.bad_lines import BadLine, BadLines
from headrace.formats.checks import check_integer
from headrace.formats.criteo_lines import BytesLike, Kind, LineLayout, ParsedLines, Reason
from headrace.formats.text_blocks import DEFAULT_MAX_LINE_BYTES

_GRAMMAR = {
    Kind.LABEL: (re.compile(rb"[01]"), Reason.BAD_LABEL),
    Kind.INT64: (re.compile(rb"-?[0-9]+"), Reason.BAD_DECIMAL),
    Kind.UINT64: (re.compile(rb"[0-9]+"), Reason.BAD_DECIMAL),
    Kind.HEX32: (re.compile(rb"[0-9a-fA-F]{1,8}"), Reason.BAD_HEX),
    Kind.HEX64: (re.compile(rb"[0-9a-fA-F]{1,16}"), Reason.BAD_HEX),
}
_RANGE = {Kind.INT64: (-(2**63), 2**63 - 1), Kind.UINT64: (0, 2**64 - 1)}


def _parse_field(text: bytes, kind: Kind, required: bool) -> int | float | Reason | None:
    pattern, reason = _GRAMMAR[kind]
    if not text:
        if kind == Kind.LABEL:
            return Reason.BAD_LABEL
        return Reason.MISSING_ID if required else None
    if not pattern.fullmatch(text):
        return reason
    if kind == Kind.LABEL:
        return float(text)
    if kind in (Kind.HEX32, Kind.HEX64):
        return int(text, 16)
    low, high = _RANGE[kind]
    digits = text.lstrip(b"-").lstrip(b"0") or b"0"
    if len(digits) > 20:  # also keeps clear of Python's limit on the length of decimal text
        return Reason.OUT_OF_RANGE
    value = -int(digits) if text.startswith(b"-") else int(digits)
    return value if low <= value <= high else Reason.OUT_OF_RANGE


def parse_lines(
    data: BytesLike,
    layout: LineLayout,
    *,
    first_line: int = 0,
    lines: int | None = None,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
) -> ParsedLines:
    """As :func:`headrace.formats.criteo_lines.parse_lines`."""
    check_integer("max_line_bytes", max_line_bytes, 1, 2**62)
    texts = bytes(data).split(b"\n")
    if not texts[-1]:
        texts.pop()  # the text ended with a line feed, or was empty
    if lines is not None and len(texts) > lines:
        raise ValueError(f"more than {lines} lines in a block of {len(data)} bytes")
    values: list[list[int | float | None]] = [[] for _ in layout.names]
    faults: list[BadLine] = []
    at = 0
    for number, line in enumerate(texts, first_line + 1):
        row = _parse_line(line, layout, max_line_bytes)
        if isinstance(row, list):
            for column, value in zip(values, row, strict=True):
                column.append(value)
        else:
            reason, column_number, begin, end, found = row
            faults.append(BadLine(number, column_number, reason, at + begin, at + end, at, at + len(line), found))
        at += len(line) + 1
    columns = [pa.array(v, field.type) for v, field in zip(values, layout.arrow_schema, strict=True)]
    return ParsedLines(layout.record_batch(columns), len(values[0]), len(texts), BadLines.of(faults))


def _parse_line(
    line: bytes, layout: LineLayout, max_line_bytes: int
) -> list[int | float | None] | tuple[Reason, int, int, int, int]:
    """The values of a row, or (reason, column, begin and end of the offending bytes, columns found)."""
    text = line[:-1] if line.endswith(b"\r") else line
    if len(line) > max_line_bytes:
        return Reason.OVERSIZED, -1, 0, len(text), 0
    if not text:
        return Reason.BLANK_LINE, -1, 0, 0, 0
    fields = text.split(b"\t")
    if len(fields) != layout.num_columns:
        return Reason.COLUMN_COUNT, -1, 0, len(text), len(fields)
    row: list[int | float | None] = []
    begin = 0
    for column, field in enumerate(fields):
        value = _parse_field(field, Kind(layout.kinds[column]), bool(layout.required[column]))
        if isinstance(value, Reason):
            return value, column, begin, begin + len(field), len(fields)
        row.append(value)
        begin += len(field) + 1
    return row
