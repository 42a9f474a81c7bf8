"""Whole lines of delimited text -> Arrow columns, many lines at a time in NumPy.

Lines, values and missing values are those of `criteo_lines.py`, with another separator: a separator always separates,
there are no quotes and no escapes. What a field may hold besides, a :class:`TextField` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.formats.arrow_arrays import to_arrow
from headrace.formats.arrow_columns import VALUE_DTYPE, column_kind, refused_when_missing
from headrace.formats.bad_lines import I64, NO_BAD_LINES, BadLine, BadLines
from headrace.formats.criteo_lines import Kind, Reason, field_reason
from headrace.formats.delimited_format import TextField, TextFormat
from headrace.formats.errors import ColumnMismatchError
from headrace.formats.schema import Dense, Label, Schema, Sparse
from headrace.formats.text_values import U8, Bool, equals, parse_decimal, parse_float, parse_hex, parse_words

_CR, _LF = 0x0D, 0x0A
_MAX_NAMED = 300


class FieldPlan(NamedTuple):
    """A column of the schema: what it holds, why a missing value is refused (0: it is not), where it comes from."""

    kind: Kind
    missing: int
    position: int
    field: TextField


@dataclass(frozen=True)
class DelimitedLayout:
    """The columns of a file, and those of the schema that come from them."""

    names: tuple[str, ...]
    num_columns: int
    separator: str
    header: bool
    plans: tuple[FieldPlan, ...]
    arrow_schema: pa.Schema

    @classmethod
    def of(cls, path: str, schema: Schema, text_format: TextFormat, file_columns: tuple[str, ...]) -> DelimitedLayout:
        """Layout of a file with these columns; ColumnMismatchError when one of the schema's is not among them."""
        if not text_format.spare_fields:
            _refuse_idle_fields(path, text_format, {*schema.column_names, *file_columns})
        plans = []
        columns: list[Label | Dense | Sparse] = [*schema.labels, *schema.dense, *schema.stored_sparse]
        for column in columns:
            kind = column_kind(column)
            multi_hot = isinstance(column, Sparse) and column.multi_hot
            field = text_format.field_of(column.name, kind, multi_hot=multi_hot)
            hint = "; files without it are read with labels=False, --no-labels" if isinstance(column, Label) else ""
            position = _position(path, column.name, field, file_columns, text_format, hint)
            plans.append(FieldPlan(kind, refused_when_missing(column), position, field))
        return cls(
            names=schema.column_names,
            num_columns=len(file_columns),
            separator=text_format.separator,
            header=text_format.header,
            plans=tuple(plans),
            arrow_schema=schema.arrow_schema(labels=bool(schema.labels)),
        )

    @property
    def declared_by(self) -> str:
        return "the header has" if self.header else "the format has"

    def column_count_hint(self, found: int) -> str:
        return ""

    def field_reason(self, bad: BadLine) -> str:
        return field_reason(Reason(bad.reason), self.plans[bad.column].kind, holds_numbers=True)

    def empty_batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.arrow_schema)


def _refuse_idle_fields(path: str, text_format: TextFormat, known: set[str]) -> None:
    for field in text_format.fields:
        if known.isdisjoint((field.column, *field.names)):
            what = f"is described by a field of {text_format.name}, but neither the schema nor the file has it"
            raise ColumnMismatchError(path, field.column, what)


def _position(
    path: str, column: str, field: TextField, file_columns: tuple[str, ...], text_format: TextFormat, hint: str
) -> int:
    for name in field.names:
        if (count := file_columns.count(name)) > 1:
            raise ColumnMismatchError(path, name, f"is there {count} times")
        if count:
            return file_columns.index(name)
    where = "the header (line 1) has" if text_format.header else f"{text_format.name} has"
    have = ", ".join(file_columns)
    have = have if len(have) <= _MAX_NAMED else have[:_MAX_NAMED] + " ..."
    if len(file_columns) == 1:
        hint = f"; the columns are expected to be separated by {text_format.separator!r}"
    raise ColumnMismatchError(path, " or ".join(field.names), f"is needed for {column!r}, but {where} {have}{hint}")


class Lines(NamedTuple):
    """int64 [lines] each: where a line begins, and ends with and without its carriage return; separators in it."""

    begin: I64
    end: I64
    text_end: I64
    separators: I64


def parse_delimited(
    text: memoryview, layout: DelimitedLayout, *, first_line: int, max_line_bytes: int
) -> tuple[pa.RecordBatch, BadLines]:
    """The good rows of `text` (whole lines) and the bad ones; bad lines raise nothing.

    Of a bad line's columns the first one, in the schema's order, is named.
    """
    data = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(data == ord(layout.separator))
    lines = cut_lines(data, at)
    reasons = np.zeros(len(lines.begin), np.uint8)
    reasons[lines.separators != layout.num_columns - 1] = Reason.COLUMN_COUNT
    reasons[lines.text_end == lines.begin] = Reason.BLANK_LINE
    reasons[lines.end - lines.begin > max_line_bytes] = Reason.OVERSIZED
    whole = np.flatnonzero(reasons == 0)
    begins, ends = field_bounds(lines, whole, at, layout.num_columns)
    arrays = []
    faults = np.zeros((len(layout.plans), len(whole)), np.uint8)
    for i, plan in enumerate(layout.plans):
        kind = layout.arrow_schema.field(i).type
        array, faults[i] = _parse_column(data, begins[plan.position], ends[plan.position], plan, kind)
        arrays.append(array)
    good = ~faults.any(axis=0)
    if not good.all():
        arrays = [array.filter(pa.array(good)) for array in arrays]
    batch = pa.RecordBatch.from_arrays(arrays, schema=layout.arrow_schema)
    if len(whole) == len(reasons) and good.all():
        return batch, NO_BAD_LINES
    return batch, _bad_lines(lines, reasons, whole, faults, begins, ends, layout, first_line)


def cut_lines(data: U8, separators: I64) -> Lines:
    """The lines of a text whose separators stand at `separators` (ascending)."""
    feeds = np.flatnonzero(data == _LF)
    end = feeds if len(data) == 0 or data[-1] == _LF else np.append(feeds, len(data))
    begin = np.concatenate([[0], end + 1])[: len(end)]
    carriage = (end > begin) & (data[np.maximum(end - 1, 0)] == _CR) if len(end) else np.zeros(0, np.bool_)
    count = np.searchsorted(separators, end) - np.searchsorted(separators, begin)
    return Lines(begin, end, end - carriage, count)


def field_bounds(lines: Lines, whole: I64, separators: I64, num_columns: int) -> tuple[I64, I64]:
    """int64 [columns, whole lines] each: where the fields of the lines `whole` begin and end."""
    first = np.searchsorted(separators, lines.begin[whole])
    between = separators[first + np.arange(num_columns - 1)[:, None]]
    begins = np.vstack([lines.begin[whole][None], between + 1])
    return begins, np.vstack([between, lines.text_end[whole][None]])


def _parse_column(data: U8, begin: I64, end: I64, plan: FieldPlan, kind: pa.DataType) -> tuple[pa.Array, U8]:
    """(column of Arrow type `kind`, reasons: uint8 [fields])"""
    if not plan.field.list_separator:
        values, missing, reasons = _parse_field(data, begin, end, plan)
        return to_arrow(values, missing, kind), reasons
    no_list = begin == end
    row, starts, element_begin, element_end = list_elements(data, begin, end, plan.field.list_separator)
    values, missing, element_reasons = _parse_field(data, element_begin, element_end, plan)
    reasons = np.zeros(len(begin), np.uint8)
    refused = np.flatnonzero(element_reasons)[::-1]
    reasons[row[refused]] = element_reasons[refused]  # of several, the first
    reasons[no_list] = plan.missing
    offsets = pa.array(np.append(starts, len(row)).astype(np.int32))
    mask = pa.array(no_list) if no_list.any() else None
    elements = to_arrow(values, missing, kind.value_type)
    return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=mask), reasons


def list_elements(data: U8, begin: I64, end: I64, separator: str) -> tuple[I64, I64, I64, I64]:
    """(field of each element, first element of each field, where each element begins, and ends) of lists in fields.

    An empty field has no elements; between two separators stands an empty one.
    """
    at = np.append(np.flatnonzero(data == ord(separator)), len(data))
    first = np.searchsorted(at, begin)
    lengths = np.where(begin == end, 0, np.searchsorted(at, end) - first + 1)
    row = np.repeat(np.arange(len(begin)), lengths)
    starts = np.cumsum(lengths) - lengths
    inner = np.arange(len(row)) - starts[row]  # place of an element in its list
    element_begin = np.where(inner == 0, begin[row], at.take(first[row] + inner - 1, mode="clip") + 1)
    element_end = np.where(inner == lengths[row] - 1, end[row], at.take(first[row] + inner, mode="clip"))
    return row, starts, element_begin, element_end


def _parse_field(data: U8, begin: I64, end: I64, plan: FieldPlan) -> tuple[np.ndarray, Bool | None, U8]:  # type: ignore[type-arg]
    """(values of the kind's dtype, missing or None, reasons)"""
    kind, field = plan.kind, plan.field
    missing = begin == end
    for word in field.missing:
        missing |= equals(data, begin, end - begin, word.encode())
    if field.whole_floats:
        end = _without_point_zero(data, begin, end)
    values: np.ndarray  # type: ignore[type-arg]
    if field.words is not None:
        values, reasons = parse_words(data, begin, end, {w.encode(): n for w, n in field.words.items()})
    elif field.part is not None:
        number, reasons = parse_decimal(data, begin, end, signed=True)
        values, no_date = field.part(number.view(np.int64))
        reasons[(reasons == 0) & no_date] = Reason.BAD_TIME
        if kind == Kind.LABEL:
            reasons[(reasons == 0) & (values > 1)] = Reason.BAD_LABEL
    elif kind == Kind.LABEL:
        values, reasons = parse_words(data, begin, end, {b"0": 0, b"1": 1})
        reasons[reasons != 0] = Reason.BAD_LABEL
    elif kind in (Kind.HEX32, Kind.HEX64):
        values, reasons = parse_hex(data, begin, end, max_digits=8 if kind == Kind.HEX32 else 16)
    elif kind == Kind.FLOAT32:
        values, reasons = parse_float(data, begin, end)
    else:
        values, reasons = parse_decimal(data, begin, end, signed=kind == Kind.INT64)
    reasons[missing] = plan.missing
    with np.errstate(over="ignore"):
        return values.astype(VALUE_DTYPE[kind]), missing if missing.any() else None, reasons


def _without_point_zero(data: U8, begin: I64, end: I64) -> I64:
    """Where the fields end when a ``.0`` behind a digit is left out."""
    long = end - begin > 2
    at = np.where(long, end, 3)
    long &= (data.take(at - 1, mode="clip") == ord("0")) & (data.take(at - 2, mode="clip") == ord("."))
    long &= (data.take(at - 3, mode="clip") - np.uint8(ord("0"))) <= 9
    shorter: I64 = end - 2 * long
    return shorter


def _bad_lines(
    lines: Lines, reasons: U8, whole: I64, faults: U8, begins: I64, ends: I64, layout: DelimitedLayout, first_line: int
) -> BadLines:
    """reasons: of whole lines, uint8 [lines]; faults: of fields, uint8 [schema columns, whole lines]"""
    column = (faults != 0).argmax(axis=0)
    field_bad = np.flatnonzero(faults.any(axis=0))
    number = np.concatenate([np.flatnonzero(reasons), whole[field_bad]])
    table = np.zeros((len(number), len(BadLine._fields)), np.int64)
    in_line = len(number) - len(field_bad)
    table[:, 0] = number + first_line + 1
    table[:, 1] = -1
    table[:in_line, 2] = reasons[number[:in_line]]
    table[:, 3], table[:, 4] = lines.begin[number], lines.text_end[number]
    table[:, 5], table[:, 6] = lines.begin[number], lines.end[number]
    table[:, 7] = np.where(table[:, 2] == Reason.COLUMN_COUNT, lines.separators[number] + 1, 0)
    position = np.array([plan.position for plan in layout.plans])[column[field_bad]]
    table[in_line:, 1] = column[field_bad]
    table[in_line:, 2] = faults[column[field_bad], field_bad]
    table[in_line:, 3] = begins[position, field_bad]
    table[in_line:, 4] = ends[position, field_bad]
    table[in_line:, 7] = layout.num_columns
    return BadLines(table[np.argsort(number, kind="stable")])
