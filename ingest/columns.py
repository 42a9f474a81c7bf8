"""Arrow columns as NumPy arrays, without passing nullable integers through floats (ids above 2^53 would merge)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.formats.rows import RowBlock
from headrace.formats.schema import Dense, Schema, Sparse
from headrace.indexer.indexed import IdColumn

Bool = npt.NDArray[np.bool_]
F32 = npt.NDArray[np.float32]


def null_mask(array: pa.Array) -> Bool | None:
    """bool [n], True where the array is null; None when nothing is."""
    if array.null_count == 0:
        return None
    valid = np.frombuffer(array.buffers()[0], np.uint8)
    bits = np.unpackbits(valid, count=array.offset + len(array), bitorder="little")
    mask: Bool = bits[array.offset :] == 0
    return mask


def primitive_values(array: pa.Array) -> npt.NDArray[Any]:
    """A read-only view of a fixed-width array's values; what stands under a null is arbitrary."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, count=array.offset + len(array))[array.offset :]


@dataclass(frozen=True)
class Ragged:
    """Ids of one feature: the index column and the ids of each row, or None when every row has exactly one."""

    column: IdColumn
    lengths: npt.NDArray[np.int32] | None


def dense_matrix(block: RowBlock, columns: tuple[Dense, ...]) -> F32:
    """float32 [B, n_dense]: nulls filled, transformed, finite; a value that is not finite raises ValueError."""
    out = np.empty((block.num_rows, len(columns)), np.float32)
    for position, column in enumerate(columns):
        array = block.data.column(column.name)
        values = primitive_values(array).astype(np.float64)
        mask = null_mask(array)
        if mask is not None:
            values[mask] = column.fill
        if column.transform == "log1p":
            values = np.log1p(np.maximum(values, 0.0))
        with np.errstate(over="ignore"):
            out[:, position] = values
    _refuse_non_finite(block, out, tuple(c.name for c in columns))
    return out


def label_matrix(block: RowBlock, schema: Schema) -> F32 | None:
    """float32 [B] for one label column, [B, n_labels] for several, None for none."""
    names = tuple(c.name for c in schema.labels if c.name in block.data.schema.names)
    if not names:
        return None
    out = np.empty((block.num_rows, len(names)), np.float32)
    for position, name in enumerate(names):
        out[:, position] = primitive_values(block.data.column(name))
    _refuse_non_finite(block, out, names)
    return out[:, 0].copy() if len(names) == 1 else out


def _refuse_non_finite(block: RowBlock, matrix: F32, names: tuple[str, ...]) -> None:
    finite = np.isfinite(matrix)
    if finite.all():
        return
    row, column = map(int, np.argwhere(~finite)[0])
    file, line = block.source.locate(row)
    raise ValueError(
        f"{file}: row {line}, column {names[column]!r}: {matrix[row, column]} is not finite as float32; "
        "clip or drop it in a Map before indexing"
    )


def id_column(block: RowBlock, feature: Sparse, table: int) -> Ragged:
    """Ids of one feature under its missing policy."""
    array = block.data.column(feature.name)
    if feature.multi_hot:
        return _list_column(array, feature, table)
    mask = null_mask(array)
    if mask is not None and feature.missing == "raise":
        file, line = block.source.locate(int(np.flatnonzero(mask)[0]))
        raise ValueError(f"{file}: row {line}, column {feature.name!r}: missing, and the schema says missing='raise'")
    values = as_ids(primitive_values(array))
    if mask is not None and feature.missing == "drop":
        return Ragged(IdColumn(table, np.ascontiguousarray(values[~mask])), (~mask).astype(np.int32))
    return Ragged(IdColumn(table, values, mask), None)


def _list_column(array: pa.ListArray, feature: Sparse, table: int) -> Ragged:
    """A multi-hot column: a null list is one missing value (or none), a null element is a missing value."""
    nulls = null_mask(array)
    flat = array.flatten()  # honours offsets and skips what stands under null lists
    lengths = np.diff(primitive_offsets(array)).astype(np.int32)
    if nulls is not None:
        lengths[nulls] = 0
    values = as_ids(primitive_values(flat))
    mask = null_mask(flat)
    if feature.missing == "raise" and (nulls is not None or mask is not None):
        raise ValueError(f"column {feature.name!r}: missing value, and the schema says missing='raise'")
    if feature.missing == "drop":
        if mask is None:
            return Ragged(IdColumn(table, values), lengths)
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        kept = np.bincount(row_of[~mask], minlength=len(lengths)).astype(np.int32)
        return Ragged(IdColumn(table, np.ascontiguousarray(values[~mask])), kept)
    if nulls is None:
        return Ragged(IdColumn(table, values, mask), lengths)
    at = (np.cumsum(lengths) - lengths)[nulls]  # a null list gets one missing id, in its place
    values = np.insert(values, at, 0)
    mask = np.insert(mask if mask is not None else np.zeros(len(values) - len(at), np.bool_), at, True)
    lengths[nulls] = 1
    return Ragged(IdColumn(table, values, mask), lengths)


def primitive_offsets(array: pa.ListArray) -> npt.NDArray[np.int64]:
    """int64 [n + 1]: list offsets of the array's own slice."""
    if len(array) == 0:
        return np.zeros(1, np.int64)
    width = np.int64 if pa.types.is_large_list(array.type) else np.int32
    raw = np.frombuffer(array.buffers()[1], width, count=array.offset + len(array) + 1)
    return raw[array.offset :].astype(np.int64)


def as_ids(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Ids as unsigned words: uint32 as it is, 64-bit values by their bits."""
    if values.dtype == np.uint32:
        return values.astype(np.uint32, copy=False)
    if values.dtype in (np.uint64, np.int64):
        return values.view(np.uint64)
    raise TypeError(f"ids of type {values.dtype} are not uint32, uint64 or int64")
