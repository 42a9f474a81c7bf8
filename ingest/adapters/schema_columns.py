"""Rows and record batches of other pipelines as the columns that a schema declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.formats.arrow_arrays import to_arrow
from headrace.formats.arrow_columns import VALUE_DTYPE, ColumnCast, column_kind, fit, plan_cast
from headrace.formats.criteo_lines import Kind, Reason, field_reason
from headrace.formats.errors import BadRecordError, ColumnMismatchError
from headrace.formats.schema import Dense, Label, Schema, Sparse

U8 = npt.NDArray[np.uint8]
Column = Label | Dense | Sparse
Row = Mapping[str, Any]

_KINDS: dict[type, str] = {
    type(None): "none", str: "text", bytes: "text", int: "integer", float: "float",
}  # fmt: skip
_OF_PYTHON = {*_KINDS, bool, list, tuple}


@dataclass(frozen=True)
class Columns:
    """`data`, columns in schema order; `refused` uint8 [columns, rows] is why a value does not fit, or 0; `values` are
    those that came, for errors."""

    schema: Schema
    data: pa.RecordBatch
    refused: U8
    values: Sequence[Any]

    @property
    def num_rows(self) -> int:
        return int(self.data.num_rows)

    def bad_rows(self) -> npt.NDArray[np.int64]:
        """int64, ascending."""
        return np.flatnonzero(self.refused.any(axis=0))

    def error(self, file: str, row: int, first_row: int, label: str = "") -> BadRecordError:
        """What is wrong with a bad row, number ``first_row + row`` of the stream (line ``+ 1`` in the error)."""
        at = int(self.refused[:, row].argmax())
        column = columns_of(self.schema)[at]
        value = self.values[at][row]
        value = value.as_py() if isinstance(value, pa.Scalar) else value
        reason = field_reason(Reason(int(self.refused[at, row])), column_kind(column), holds_numbers=True)
        offending = value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
        return BadRecordError(file, first_row + row + 1, column.name, offending, reason, label)


def columns_of(schema: Schema) -> tuple[Column, ...]:
    """Labels, dense and sparse columns: the order of a record batch."""
    return (*schema.labels, *schema.dense, *schema.sparse)


def batch_columns(schema: Schema, file: str, batch: pa.RecordBatch) -> Columns:
    """The columns of a record batch, cast to the schema's types; ColumnMismatchError for what cannot be."""
    found = [_column_in(file, column, batch) for column in columns_of(schema)]
    return _cast(schema, file, found, found)


def row_columns(schema: Schema, file: str, rows: Sequence[Row], first_row: int) -> Columns:
    """Rows as columns. Integers, floats, text (decimal, or hexadecimal of hex columns), None, lists of these, and
    arrays or tensors of one number or (for multi-hot columns) one axis; a row without a column is an error."""
    arrays, values = [], []
    beyond = np.zeros((len(columns_of(schema)), len(rows)), np.uint8)
    for i, column in enumerate(columns_of(schema)):
        values.append(_values(file, column, rows, first_row))
        array, beyond[i] = _array(file, column, values[-1], first_row)
        arrays.append(array)
    found = _cast(schema, file, arrays, values)
    return replace(found, refused=np.maximum(found.refused, beyond))


def _cast(schema: Schema, file: str, arrays: Sequence[pa.Array], values: Sequence[Any]) -> Columns:
    out, rows = [], len(arrays[0]) if arrays else 0
    refused = np.zeros((len(arrays), rows), np.uint8)
    for i, (column, array) in enumerate(zip(columns_of(schema), arrays, strict=True)):
        cast: ColumnCast = plan_cast(file, column, column.name, array.type)
        done, reasons = cast.apply(array)
        if reasons is not None:
            refused[i] = reasons
        out.append(done)
    target = schema.arrow_schema(labels=bool(schema.labels))
    return Columns(schema, pa.RecordBatch.from_arrays(out, schema=target), refused, values)


def _column_in(file: str, column: Column, batch: pa.RecordBatch) -> pa.Array:
    found = batch.schema.get_all_field_indices(column.name)
    if len(found) == 1:
        array = batch.column(found[0])
        array.validate(full=True)  # lengths and offsets may come from outside
        return array
    why = f"is there {len(found)} times" if found else "is declared by the schema, the batch has "
    raise ColumnMismatchError(file, column.name, why if found else why + ", ".join(batch.schema.names[:50]))


def _values(file: str, column: Column, rows: Sequence[Row], first_row: int) -> list[Any]:
    """The values of a column, numbers and lists of NumPy and torch as Python's."""
    try:
        values = [row[column.name] for row in rows]
    except KeyError:
        number, row = next((n, row) for n, row in enumerate(rows) if column.name not in row)
        have = ", ".join(map(str, row))
        what = f"is declared by the schema, row {first_row + number} has {have[:200]}"
        raise ColumnMismatchError(file, column.name, what) from None
    if not set(map(type, values)) <= _OF_PYTHON:
        values = [_plain(value) for value in values]
    if not isinstance(column, Sparse) and bool in set(map(type, values)):  # a label may be one; an id is none
        values = [int(value) if isinstance(value, bool) else value for value in values]
    return values


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _array(file: str, column: Column, values: list[Any], first_row: int) -> tuple[pa.Array, U8]:
    """(values as an Arrow array, integers beyond 64 bits as 0; the reason why a row is refused for one of those)."""
    multi_hot = isinstance(column, Sparse) and column.multi_hot
    flat = _flat(file, column, values, first_row) if multi_hot else values
    kinds = {_KINDS.get(kind, "other") for kind in set(map(type, flat))} - {"none"}
    if multi_hot and "other" in kinds:  # lists of NumPy's numbers
        values = [None if value is None else [_plain(one) for one in value] for value in values]
        flat = _flat(file, column, values, first_row)
        kinds = {_KINDS.get(kind, "other") for kind in set(map(type, flat))} - {"none"}
    if "other" in kinds or ("float" in kinds and isinstance(column, Sparse)):
        raise _wrong_value(file, column, values, first_row)
    if "text" in kinds and len(kinds) > 1:
        raise ColumnMismatchError(file, column.name, f"numbers and text are mixed in rows from {first_row} on")
    if {"integer", "float"} <= kinds:
        return _integers_and_floats(values, column_kind(column))
    refused = np.zeros(len(values), np.uint8)
    element = _element_type(column, kinds)
    if pa.types.is_integer(element):
        numbers = [one for one in flat if one is not None]
        low, high = (0, 2**64 - 1) if element == pa.uint64() else (-(2**63), 2**63 - 1)
        if min(numbers) < low or max(numbers) > high:
            values = list(values)
            for number, value in enumerate(values):
                many = value if multi_hot else (value,)
                if any(one is not None and not low <= one <= high for one in many or ()):
                    refused[number], values[number] = Reason.OUT_OF_RANGE, [0] if multi_hot else 0
    return pa.array(values, pa.list_(element) if multi_hot else element), refused


def _integers_and_floats(values: list[Any], kind: Kind) -> tuple[pa.Array, U8]:
    """The same for a column of both: each cast as if it stood among its like, so that no value depends on the others of
    its block; Arrow would make floats of all, and round the integers."""
    out, refused = np.zeros(len(values), VALUE_DTYPE[kind]), np.zeros(len(values), np.uint8)
    for of_python, dtype in ((int, np.dtype(np.int64)), (float, np.dtype(np.float64))):
        at = np.array([i for i, value in enumerate(values) if type(value) is of_python], np.int64)
        if of_python is int:
            fits = np.array([-(2**63) <= values[i] < 2**63 for i in at.tolist()], np.bool_)
            refused[at[~fits]] = Reason.OUT_OF_RANGE
            at = at[fits]
        out[at], refused[at] = fit(np.array([values[i] for i in at.tolist()], dtype), kind)
    missing = np.array([value is None for value in values], np.bool_)
    return to_arrow(out, missing, pa.from_numpy_dtype(VALUE_DTYPE[kind])), refused


def _flat(file: str, column: Column, values: list[Any], first_row: int) -> list[Any]:
    """The elements of all lists."""
    for number, value in enumerate(values):
        if value is not None and not isinstance(value, (list, tuple)):
            raise _mismatch(file, column, value, first_row + number, "a list (the column is multi-hot)")
    return list(chain.from_iterable(value for value in values if value is not None))


def _wrong_value(file: str, column: Column, values: list[Any], first_row: int) -> ColumnMismatchError:
    """The error for the first value of a kind that the column does not take."""
    multi_hot, wanted = isinstance(column, Sparse) and column.multi_hot, "a number, text or None"
    taken = {"none", "text", "integer", "float"}
    if isinstance(column, Sparse):
        wanted = "an integer, text or None"
        taken.remove("float")
    for number, value in enumerate(values):
        for one in (value or ()) if multi_hot else (value,):
            if _KINDS.get(type(one)) not in taken:
                return _mismatch(file, column, one, first_row + number, wanted)
    raise AssertionError("no value is wrong")


def _element_type(column: Column, kinds: set[str]) -> pa.DataType:
    """A type that holds values of these kinds as they are, as far as they fit into 64 bits."""
    if not kinds:
        return pa.null()
    if "text" in kinds:
        return pa.large_binary()
    if "float" in kinds:
        return pa.float64()
    return pa.uint64() if column_kind(column) in (Kind.UINT64, Kind.HEX32, Kind.HEX64) else pa.int64()


def _mismatch(file: str, column: Column, value: Any, row: int, wanted: str) -> ColumnMismatchError:
    return ColumnMismatchError(file, column.name, f"row {row}: {type(value).__name__} {value!r:.60} is not {wanted}")
