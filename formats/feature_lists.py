"""Lines of ``COLUMN,..,feature_num,feature_list`` as Ali-CCP has them -> Arrow columns, many lines at a time in NumPy.

A feature list holds features joined by ``\\x01``, each ``FIELD\\x02ID\\x03VALUE``. A field may repeat: all its ids are
kept, in their order. The value (a weight) is checked to look like a number, and not read further.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.formats.arrow_arrays import to_arrow
from headrace.formats.arrow_columns import VALUE_DTYPE, column_kind
from headrace.formats.bad_lines import I64, NO_BAD_LINES, BadLine, BadLines
from headrace.formats.criteo_lines import Kind, Reason, field_reason
from headrace.formats.delimited_lines import Lines, cut_lines, field_bounds, list_elements
from headrace.formats.schema import Label, Schema, SchemaError, Sparse
from headrace.formats.text_values import U8, U64, Bool, parse_decimal, parse_hex, parse_words

_FEATURE_END, _FIELD_END, _ID_END = "\x01", 2, 3
_MAX_FIELD_BYTES = 8
_NUMBER = np.zeros(256, np.bool_)
_NUMBER[list(b"0123456789.+-eE")] = True


@dataclass(frozen=True)
class FeatureLayout:
    """A file's columns before ``feature_num``, and which columns of the schema are fields of the list.

    Labels are named as the file's columns; so is a sparse column of encoding hex64 (a key). Every other sparse column
    is a field, of encoding uint64, with several ids (multi_hot) or one.
    """

    schema: Schema
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.schema.dense:
            raise SchemaError(f"dense {self.schema.dense[0].name!r}: these files have no dense values")
        for label in self.schema.labels:
            if label.name not in self.columns:
                raise SchemaError(f"label {label.name!r}: the file has {', '.join(self.columns)}")
            if not label.binary:
                raise SchemaError(f"label {label.name!r}: these files hold 0 or 1, not the numbers of binary=False")
        for sparse in self.fields:
            if sparse.encoding != "uint64":
                raise SchemaError(f"sparse {sparse.name!r}: fields are uint64, not {sparse.encoding}")
            if not 1 <= len(sparse.name.encode()) <= _MAX_FIELD_BYTES:
                raise SchemaError(f"sparse {sparse.name!r}: no field has so long a name")

    @property
    def fields(self) -> tuple[Sparse, ...]:
        return tuple(s for s in self.schema.stored_sparse if s.name not in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.columns, "feature_num", "feature_list")

    @property
    def num_columns(self) -> int:
        return len(self.names)

    separator = ","
    declared_by = "the format has"

    def column_count_hint(self, found: int) -> str:
        return ""

    def field_reason(self, bad: BadLine) -> str:
        return field_reason(Reason(bad.reason), Kind.HEX64 if bad.reason == Reason.BAD_HEX else Kind.UINT64)

    def empty_batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.schema.arrow_schema(labels=bool(self.schema.labels)))


class _Faults:
    """The first fault of each line: its reason, and which bytes of which column."""

    def __init__(self, begins: I64, ends: I64) -> None:
        self._begins, self._ends = begins, ends
        rows = begins.shape[1]
        self.reason = np.zeros(rows, np.uint8)
        self.column = np.zeros(rows, np.int64)
        self.begin, self.end = np.zeros(rows, np.int64), np.zeros(rows, np.int64)

    def add(self, column: int, reasons: U8) -> None:
        """reasons: uint8 [lines], of a whole column"""
        rows = np.flatnonzero((reasons != 0) & (self.reason == 0))
        self._set(column, rows, reasons[rows], self._begins[column, rows], self._ends[column, rows])

    def add_elements(self, column: int, row: I64, reasons: U8, begin: I64, end: I64) -> None:
        """reasons: uint8 [elements], of parts of a column; row: the line of each, ascending"""
        bad = np.flatnonzero(reasons)
        rows, first = np.unique(row[bad], return_index=True)
        free = self.reason[rows] == 0
        at = bad[first[free]]
        self._set(column, rows[free], reasons[at], begin[at], end[at])

    def _set(self, column: int, rows: I64, reasons: U8, begin: I64, end: I64) -> None:
        self.reason[rows], self.column[rows] = reasons, column
        self.begin[rows], self.end[rows] = begin, end


def parse_feature_lines(
    text: memoryview, layout: FeatureLayout, *, first_line: int, max_line_bytes: int
) -> tuple[pa.RecordBatch, BadLines]:
    """The good rows of `text` (whole lines) and the bad ones; bad lines raise nothing."""
    data = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(data == ord(","))
    lines = cut_lines(data, commas)
    broken = np.zeros(len(lines.begin), np.uint8)
    broken[lines.separators != layout.num_columns - 1] = Reason.COLUMN_COUNT
    broken[lines.text_end == lines.begin] = Reason.BLANK_LINE
    broken[lines.end - lines.begin > max_line_bytes] = Reason.OVERSIZED
    whole = np.flatnonzero(broken == 0)
    begins, ends = field_bounds(lines, whole, commas, layout.num_columns)
    faults = _Faults(begins, ends)
    arrays: dict[str, pa.Array] = {}
    for position, name in enumerate(layout.columns):
        arrays |= _leading(data, begins[position], ends[position], name, position, layout, faults)
    arrays |= _features(data, begins, ends, layout, faults)
    _check_labels(arrays, layout, faults)
    schema = layout.schema.arrow_schema(labels=bool(layout.schema.labels))
    batch = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    good = faults.reason == 0
    if len(whole) == len(broken) and good.all():
        return batch, NO_BAD_LINES
    return batch.filter(pa.array(good)), _bad_lines(lines, broken, whole, faults, layout, first_line)


def _leading(
    data: U8, begin: I64, end: I64, name: str, position: int, layout: FeatureLayout, faults: _Faults
) -> dict[str, pa.Array]:
    """The array of a column before the list, where the schema has it."""
    columns: tuple[Label | Sparse, ...] = (*layout.schema.labels, *layout.schema.stored_sparse)
    column = next((c for c in columns if c.name == name), None)
    if column is None:
        return {}
    kind = pa.float32() if isinstance(column, Label) else column.arrow_type
    if isinstance(column, Label):
        values, reasons = parse_words(data, begin, end, {b"0": 0, b"1": 1})
        reasons[reasons != 0] = Reason.BAD_LABEL
    else:
        values, reasons = parse_hex(data, begin, end, max_digits=16)
    faults.add(position, reasons)
    return {name: to_arrow(values.astype(VALUE_DTYPE[column_kind(column)]), None, kind)}


def _check_labels(arrays: dict[str, pa.Array], layout: FeatureLayout, faults: _Faults) -> None:
    """Samples that were bought and not clicked are invalid by the dataset's own words."""
    if "click" in arrays and "buy" in arrays:
        click, buy = (arrays[name].to_numpy() for name in ("click", "buy"))
        faults.add(layout.columns.index("buy"), np.where(buy > click, np.uint8(Reason.BOUGHT_UNCLICKED), np.uint8(0)))


def _features(data: U8, begins: I64, ends: I64, layout: FeatureLayout, faults: _Faults) -> dict[str, pa.Array]:
    rows = begins.shape[1]
    number, listed = layout.num_columns - 2, layout.num_columns - 1
    row, starts, begin, end = list_elements(data, begins[listed], ends[listed], _FEATURE_END)
    field_end, one_field_end = _only(data, _FIELD_END, begin, end)
    id_end, one_id_end = _only(data, _ID_END, begin, end)
    shaped = one_field_end & one_id_end & (begin < field_end) & (field_end < id_end) & _is_number(data, id_end + 1, end)
    field_end, id_end = np.where(shaped, field_end, begin), np.where(shaped, id_end, begin)
    ids, reasons = parse_decimal(data, field_end + shaped, id_end, signed=False)
    reasons[~shaped] = Reason.BAD_FEATURE
    faults.add_elements(listed, row, reasons, begin, end)
    lengths = np.diff(np.append(starts, len(row)))
    stated, wrong = parse_decimal(data, begins[number], ends[number], signed=False)
    wrong[(wrong == 0) & (stated != lengths.astype(np.uint64))] = Reason.FEATURE_COUNT
    faults.add(number, wrong)
    fields = layout.fields
    if not fields:
        return {}
    codes = np.array([int.from_bytes(f.name.encode(), "little") for f in fields], np.uint64)
    order = np.argsort(codes)
    found = _codes(data, begin, field_end)
    at = np.minimum(np.searchsorted(codes[order], found), len(codes) - 1)
    which = np.where(codes[order][at] == found, order[at], len(fields)).astype(np.int64)
    sorted_by_field = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[sorted_by_field], np.arange(len(fields) + 1))
    arrays = {}
    for i, field in enumerate(fields):
        chosen = sorted_by_field[bounds[i] : bounds[i + 1]]
        counts = np.bincount(row[chosen], minlength=rows)
        if not field.multi_hot:
            several = np.where(counts > 1, np.uint8(Reason.SEVERAL_IDS), np.uint8(0))
            faults.add(listed, several)
        if field.missing == "raise":
            faults.add(listed, np.where(counts == 0, np.uint8(Reason.MISSING_ID), np.uint8(0)))
        arrays[field.name] = lists_or_ids(field, counts, ids[chosen])
    return arrays


def lists_or_ids(field: Sparse, counts: npt.NDArray[np.int64], ids: U64) -> pa.Array:
    """The column of a field with `counts` ids in each row (int64 [rows]); none is a missing value.

    Of several ids of a field with one a row the first is taken.
    """
    starts = np.cumsum(counts) - counts
    if not field.multi_hot:
        there = counts > 0
        values = np.zeros(len(counts), np.uint64)
        values[there] = ids[starts[there]]
        return to_arrow(values, ~there, field.arrow_type)
    offsets = pa.array(np.append(starts, len(ids)).astype(np.int32))
    absent = counts == 0
    mask = pa.array(absent) if absent.any() else None
    return pa.ListArray.from_arrays(offsets, to_arrow(ids, None, pa.uint64()), type=field.arrow_type, mask=mask)


def _only(data: U8, byte: int, begin: I64, end: I64) -> tuple[I64, Bool]:
    """(where `byte` first stands in each element, or anywhere; whether it stands there just once)."""
    at = np.append(np.flatnonzero(data == byte), len(data))
    first = np.searchsorted(at, begin)
    once: Bool = np.searchsorted(at, end) - first == 1
    return at[first], once


def _is_number(data: U8, begin: I64, end: I64) -> Bool:
    """Whether an element is not empty and holds nothing but what numbers are written with."""
    others = np.concatenate([[0], np.cumsum(~_NUMBER[data])])
    begin = np.minimum(begin, end)
    number: Bool = (begin < end) & (others[end] == others[begin])
    return number


def _codes(data: U8, begin: I64, end: I64) -> U64:
    """Each field's name as a number, its first byte lowest; 0 for names of more than 8 bytes."""
    length = end - begin
    codes = np.zeros(len(begin), np.uint64)
    for place in range(int(min(_MAX_FIELD_BYTES, length.max(initial=0)))):
        byte = data.take(begin + place, mode="clip").astype(np.uint64) << np.uint64(8 * place)
        codes |= np.where(place < length, byte, np.uint64(0))
    return np.where(length > _MAX_FIELD_BYTES, np.uint64(0), codes)


def _bad_lines(
    lines: Lines, broken: U8, whole: I64, faults: _Faults, layout: FeatureLayout, first_line: int
) -> BadLines:
    in_field = np.flatnonzero(faults.reason)
    number = np.concatenate([np.flatnonzero(broken), whole[in_field]])
    cut = len(number) - len(in_field)
    table = np.zeros((len(number), len(BadLine._fields)), np.int64)
    table[:, 0] = number + first_line + 1
    table[:, 1] = -1
    table[:cut, 2] = broken[number[:cut]]
    table[:, 3], table[:, 4] = lines.begin[number], lines.text_end[number]
    table[:, 5], table[:, 6] = lines.begin[number], lines.end[number]
    table[:, 7] = np.where(table[:, 2] == Reason.COLUMN_COUNT, lines.separators[number] + 1, 0)
    table[cut:, 1] = faults.column[in_field]
    table[cut:, 2] = faults.reason[in_field]
    table[cut:, 3], table[cut:, 4] = faults.begin[in_field], faults.end[in_field]
    table[cut:, 7] = layout.num_columns
    return BadLines(table[np.argsort(number, kind="stable")])
