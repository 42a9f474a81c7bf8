"""Columns of Arrow data, of whatever type they were written with, as the columns that a schema declares.

What is possible is decided once a file, from its types (:func:`plan_cast`); what does not fit then is a bad record,
value by value. No value changes its meaning on the way:

| declared | taken from | refused as bad records |
|---|---|---|
| label (float32) | integers, floats, bool | null, all but 0 and 1 |
| label with ``binary=False`` | as dense float32, but no text | null, else as dense float32 |
| dense int64 | integers, bool, floats, decimal text | fractions, not finite, beyond 64 bits |
| dense float32 | integers, bool, floats and text (rounded to float32) | not finite in it, integers that it rounds |
| uint64, int64 | integers of any width and sign, decimal text | beyond the range |
| hex32, hex64 | integers of any width and sign, hexadecimal text | beyond the range |

Text is string or binary, of any offset width; dictionaries are looked up; an empty text is a missing value, and so is
every value of a column of type null. Ids from floats are refused (a float cannot hold every id). Lists are multi-hot
columns only; a null list and a null element stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow_buffers import Bool, null_mask, primitive_values
from headrace.formats.arrow_arrays import offsets, string_bytes, to_arrow
from headrace.formats.criteo_lines import SPARSE_KIND, Kind, Reason
from headrace.formats.errors import ColumnMismatchError
from headrace.formats.schema import Dense, Label, Sparse
from headrace.formats.text_values import U8, parse_decimal, parse_float, parse_hex

VALUE_DTYPE: dict[Kind, np.dtype[Any]] = {
    Kind.LABEL: np.dtype(np.float32),
    Kind.FLOAT32: np.dtype(np.float32),
    Kind.INT64: np.dtype(np.int64),
    Kind.UINT64: np.dtype(np.uint64),
    Kind.HEX32: np.dtype(np.uint32),
    Kind.HEX64: np.dtype(np.uint64),
}
_ID_KINDS = (Kind.UINT64, Kind.HEX32, Kind.HEX64)
_MAX_OFFSET = 2**31 - 1


def column_kind(column: Label | Dense | Sparse) -> Kind:
    """What the values of a schema column are."""
    if isinstance(column, Label):
        return Kind.LABEL if column.binary else Kind.FLOAT32
    if isinstance(column, Dense):
        return Kind.INT64 if column.dtype == "int64" else Kind.FLOAT32
    return SPARSE_KIND[column.encoding]


def refused_when_missing(column: Label | Dense | Sparse) -> int:
    """The reason why a missing value of a column makes a bad record; 0 when it does not."""
    if isinstance(column, Label):
        return Reason.NO_LABEL
    return Reason.MISSING_ID if isinstance(column, Sparse) and column.missing == "raise" else 0


def fit(values: npt.NDArray[Any], kind: Kind, *, wrap_negative: bool = False) -> tuple[npt.NDArray[Any], U8]:
    """Numbers as the values of a `kind`, and for each 0 or the reason why it does not fit (uint8 [n])."""
    dtype = VALUE_DTYPE[kind]
    reasons = np.zeros(len(values), np.uint8)
    if kind == Kind.LABEL:
        reasons[~_is_binary(values)] = Reason.BAD_LABEL
    if values.dtype.kind == "f":
        reasons[~np.isfinite(values)] = Reason.NOT_FINITE
        if kind == Kind.INT64:
            reasons[(reasons == 0) & (np.trunc(values) != values)] = Reason.NOT_WHOLE
            reasons[(reasons == 0) & ((values < -(2.0**63)) | (values >= 2.0**63))] = Reason.OUT_OF_RANGE
        else:
            with np.errstate(over="ignore"):
                reasons[(reasons == 0) & ~np.isfinite(values.astype(np.float32))] = Reason.OUT_OF_RANGE
        return np.where(reasons == 0, values, 0).astype(dtype), reasons
    if kind == Kind.FLOAT32:
        reasons[_rounded_in_float32(values)] = Reason.ROUNDED
    elif kind == Kind.INT64 and values.dtype == np.uint64:
        reasons[values > 2**63 - 1] = Reason.OUT_OF_RANGE
    elif kind in _ID_KINDS:
        wraps = wrap_negative and values.dtype.itemsize == dtype.itemsize
        if values.dtype.kind == "i" and not wraps:
            reasons[values < 0] = Reason.OUT_OF_RANGE
        if values.dtype.itemsize > dtype.itemsize:
            reasons[values > np.iinfo(dtype).max] = Reason.OUT_OF_RANGE
    return values.astype(dtype), reasons


def _is_binary(values: npt.NDArray[Any]) -> Bool:
    """bool [n]: what is 0 or 1."""
    found: Bool = (values == 0) | (values == 1)
    return found


def _rounded_in_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """int64, ascending: where an integer has more than the 24 bits of float32 between its first and last one."""
    if not len(values) or values.dtype.itemsize <= 2 or (values.min() >= -(2**24) and values.max() <= 2**24):
        return np.zeros(0, np.int64)
    signed = values.dtype.kind == "i"
    size = np.abs(values.astype(np.int64)).view(np.uint64) if signed else values.astype(np.uint64)  # -2^63 is 2^63
    lowest_bit = size & (~size + np.uint64(1))
    return np.flatnonzero(size // np.maximum(lowest_bit, 1) >= 2**24)


@dataclass(frozen=True)
class ColumnCast:
    """How the column `source` of a file becomes the column `name` of the schema, of Arrow type `target`.

    `wrap_negative`: negative ids stand for the unsigned ones of the same bits (of the same width).
    """

    name: str
    source: str
    target: pa.DataType
    kind: Kind
    missing: int
    wrap_negative: bool

    def apply(self, array: pa.Array) -> tuple[pa.Array, U8 | None]:
        """(column, reason why each row is refused, else 0: uint8 [rows], or None where none is); the column is `array`
        itself where it is what was declared. ArrowInvalid for an array that is damaged, OverflowError for lists of more
        than 2^31 - 1 elements together."""
        if array.type == self.target and self._fits_as_it_is(array):
            return array, None
        if not pa.types.is_list(self.target):
            values, nulls, reasons = self._values(array)
            if self.missing and nulls is not None:
                reasons[nulls] = self.missing
            return to_arrow(values, nulls, self.target), reasons
        if pa.types.is_null(array.type):
            array = array.cast(pa.list_(pa.null()))
        if pa.types.is_fixed_size_list(array.type):
            array = array.cast(pa.large_list(array.type.value_type))
        return self._lists(array)

    def keeps(self, found: pa.DataType) -> bool:
        """Whether `apply` gives any array of this type back as it is."""
        return bool(found == self.target and pa.types.is_integer(found) and not self.missing)

    def _fits_as_it_is(self, array: pa.Array) -> bool:
        """Of an array of the declared type: all integers fit, labels of 0 and 1, other floats that are finite."""
        if self.missing and array.null_count:
            return False
        if self.kind == Kind.LABEL:
            return bool(_is_binary(primitive_values(array)).all())
        if pa.types.is_floating(self.target):
            return bool(np.isfinite(primitive_values(array)).all())  # also under nulls, where anything may be
        return bool(pa.types.is_integer(self.target))

    def _lists(self, array: pa.Array) -> tuple[pa.Array, U8]:
        list_nulls = null_mask(array)
        lengths = np.diff(offsets(array))
        if list_nulls is not None:
            lengths[list_nulls] = 0  # what stands under a null list may be anything
        ends = np.cumsum(lengths)
        if len(ends) and ends[-1] > _MAX_OFFSET:
            raise OverflowError(
                f"{ends[-1]} list elements in {len(array)} rows, more than offsets of 32 bits can count"
            )
        values, nulls, element_reasons = self._values(array.flatten())
        if self.missing and nulls is not None:
            element_reasons[nulls] = self.missing
        reasons = np.zeros(len(array), np.uint8)
        refused = np.flatnonzero(element_reasons)
        rows = np.searchsorted(ends, refused, side="right")
        reasons[rows[::-1]] = element_reasons[refused[::-1]]  # of several, the first
        if self.missing and list_nulls is not None:
            reasons[list_nulls] = self.missing
        starts = np.concatenate([[0], ends]).astype(np.int32)
        elements = to_arrow(values, nulls, self.target.value_type)
        mask = None if list_nulls is None else pa.array(list_nulls)
        return pa.ListArray.from_arrays(pa.array(starts), elements, type=self.target, mask=mask), reasons

    def _values(self, array: pa.Array) -> tuple[npt.NDArray[Any], Bool | None, U8]:
        """(values, null mask, reasons) of an array that is no list."""
        array = _plain(array)
        nulls = null_mask(array)
        if pa.types.is_null(array.type):
            return np.zeros(len(array), VALUE_DTYPE[self.kind]), nulls, np.zeros(len(array), np.uint8)
        if _is_text(array.type):
            values, nulls, reasons = self._parse(array, nulls)
        else:
            values, reasons = fit(primitive_values(array), self.kind, wrap_negative=self.wrap_negative)
        if nulls is not None:
            reasons[nulls] = 0
        return values, nulls, reasons

    def _parse(self, array: pa.Array, nulls: Bool | None) -> tuple[npt.NDArray[Any], Bool | None, U8]:
        data, at = string_bytes(array), offsets(array)
        values: npt.NDArray[Any]
        begin, end = at[:-1], at[1:]
        missing = begin == end if nulls is None else nulls | (begin == end)
        end = np.where(missing, begin, end)
        if self.kind in (Kind.HEX32, Kind.HEX64):
            values, reasons = parse_hex(data, begin, end, max_digits=8 if self.kind == Kind.HEX32 else 16)
        elif self.kind == Kind.FLOAT32:
            values, reasons = parse_float(data, begin, end)
        else:
            values, reasons = parse_decimal(data, begin, end, signed=self.kind == Kind.INT64)
        reasons[missing] = 0
        return values.astype(VALUE_DTYPE[self.kind]), missing if missing.any() else None, reasons


def plan_cast(
    path: str, column: Label | Dense | Sparse, source: str, found: pa.DataType, *, wrap_negative: bool = False
) -> ColumnCast:
    """How a file's column `source` of type `found` becomes `column`; ColumnMismatchError when it cannot."""
    kind = column_kind(column)
    multi_hot = isinstance(column, Sparse) and column.multi_hot
    target = pa.float32() if isinstance(column, Label) else column.arrow_type
    element = _unwrapped(found.value_type) if _is_list(found) else _unwrapped(found)
    shape_fits = _is_list(found) or pa.types.is_null(found) if multi_hot else not _is_list(found)
    if not (shape_fits and _takes(column, element)):
        hint = ""
        if pa.types.is_floating(element) and isinstance(column, Sparse):
            hint = "; a float cannot hold every id: write ids as integers"
        elif multi_hot or _is_list(found):
            hint = "; lists are for multi_hot columns, and only lists are"
        declared = getattr(column, "encoding", None) or target
        what = f"list of {declared}" if multi_hot else declared
        raise ColumnMismatchError(path, source, f"the file has {found}, the schema declares {what}{hint}")
    return ColumnCast(column.name, source, target, kind, refused_when_missing(column), wrap_negative)


def _takes(column: Label | Dense | Sparse, found: pa.DataType) -> bool:
    if pa.types.is_null(found) or pa.types.is_integer(found):
        return True
    if pa.types.is_boolean(found) or pa.types.is_floating(found):
        return not isinstance(column, Sparse)
    return _is_text(found) and not isinstance(column, Label)


def _unwrapped(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_string_view,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    )


def _plain(array: pa.Array) -> pa.Array:
    """Without dictionary, and of a type whose buffers are read here; ArrowInvalid for dictionary codes out of range."""
    if pa.types.is_dictionary(array.type):
        array.validate(full=True)  # L86
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.uint8())
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    return array
