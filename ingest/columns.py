"""Columns of decoded rows as the arrays of a batch: dense values, labels, ids under their missing policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow_buffers import null_mask, primitive_values
from headrace.formats.rows import RowBlock
from headrace.formats.schema import Dense, Schema, Sparse
from headrace.indexer.indexed import IdColumn
from headrace.ingest.dense_transforms import transformed

F32 = npt.NDArray[np.float32]


def _column(block: RowBlock, name: str) -> pa.Array:
    """Column `name` of a block; ValueError that names the block's first row when it is not there."""
    position = block.data.schema.get_field_index(name)
    if position < 0:
        have = ", ".join(block.data.schema.names)
        raise ValueError(f"{_place(block, 0)}: no column {name!r}, which the schema declares; there are {have}")
    return block.data.column(position)


def column_mask(block: RowBlock, name: str) -> npt.NDArray[np.bool_] | None:
    """bool [B], True where column `name` is null; None when nothing is."""
    return null_mask(_column(block, name))


def column_values(block: RowBlock, name: str) -> npt.NDArray[Any]:
    """Values [B] of a column of numbers; what stands under a null is arbitrary. TypeError for other columns."""
    try:
        return primitive_values(_column(block, name))
    except TypeError as error:
        raise TypeError(f"{_place(block, 0)}, column {name!r}: {error}") from None


def _place(block: RowBlock, row: int) -> str:
    if row >= block.num_rows:
        return "a block without rows"
    file, line = block.source.locate(row)
    return f"{file}: row {line}"


@dataclass(frozen=True)
class Ragged:
    """Ids of one feature: the index column and the ids of each row, or None when every row has exactly one."""

    column: IdColumn
    lengths: npt.NDArray[np.int32] | None


def dense_matrix(block: RowBlock, columns: tuple[Dense, ...]) -> F32:
    """float32 [B, n_dense]: nulls filled, transformed, finite; a value that is not finite raises ValueError."""
    out = np.empty((block.num_rows, len(columns)), np.float32)
    for position, column in enumerate(columns):
        values = column_values(block, column.name).astype(np.float64)
        mask = null_mask(_column(block, column.name))
        if mask is not None:
            values[mask] = column.fill
        with np.errstate(over="ignore"):
            out[:, position] = transformed(values, column)
    _refuse_non_finite(block, out, tuple(c.name for c in columns))
    return out


def label_matrix(block: RowBlock, schema: Schema) -> F32 | None:
    """float32 [B] for one label column, [B, n_labels] for several, None when the schema declares none.

    A missing label, or one that is not finite, raises ValueError.
    """
    names = tuple(c.name for c in schema.labels)
    if not names:
        return None
    out = np.empty((block.num_rows, len(names)), np.float32)
    for position, name in enumerate(names):
        out[:, position] = column_values(block, name)
        mask = null_mask(_column(block, name))
        if mask is not None:
            row = int(np.flatnonzero(mask)[0])
            raise ValueError(f"{_place(block, row)}, column {name!r}: the label is missing")
    _refuse_non_finite(block, out, names)
    return out[:, 0].copy() if len(names) == 1 else out


def _refuse_non_finite(block: RowBlock, matrix: F32, names: tuple[str, ...]) -> None:
    finite = np.isfinite(matrix)
    if finite.all():
        return
    row, column = map(int, np.argwhere(~finite)[0])
    raise ValueError(
        f"{_place(block, row)}, column {names[column]!r}: {matrix[row, column]} is not finite as float32; "
        "clip or drop it in a Map before indexing"
    )


def id_column(block: RowBlock, feature: Sparse, table: int) -> Ragged:
    """Ids of one feature under its missing policy; TypeError for a column of another type than the schema declares."""
    if feature.multi_hot:
        return _list_column(block, feature, table)
    return with_policy(block, feature, *one_hot(block, feature), table)


def one_hot(block: RowBlock, feature: Sparse) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """(ids [B], missing [B] or None) of a column with one id a row."""
    values = as_ids(column_values(block, feature.name), f"{_place(block, 0)}, column {feature.name!r}")
    return values, column_mask(block, feature.name)


def with_policy(
    block: RowBlock,
    feature: Sparse,
    values: npt.NDArray[Any],
    mask: npt.NDArray[np.bool_] | None,
    table: int,
) -> Ragged:
    """One id a row, or none where a missing one is dropped, under the feature's missing policy."""
    if mask is not None and feature.missing == "raise":
        raise _missing(block, feature, int(np.flatnonzero(mask)[0]))
    if mask is not None and feature.missing == "drop":
        return Ragged(IdColumn(table, np.ascontiguousarray(values[~mask])), (~mask).astype(np.int32))
    values, mask = _zeroed(feature, values, mask)
    return Ragged(IdColumn(table, values, mask), None)


def list_ids(block: RowBlock, feature: Sparse) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """(all elements of a column of lists, lengths [B]); null lists have the length 0. TypeError for other columns."""
    array = _column(block, feature.name)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise TypeError(f"{_place(block, 0)}, column {feature.name!r}: {array.type} is no list, but multi_hot")
    lengths = np.diff(primitive_offsets(array)).astype(np.int32)
    if (nulls := null_mask(array)) is not None:
        lengths[nulls] = 0
    return array.flatten(), lengths  # flatten honours offsets and skips what stands under null lists


def _list_column(block: RowBlock, feature: Sparse, table: int) -> Ragged:
    """A multi-hot column: a null list is one missing value (or none), a null element is a missing value."""
    flat, lengths = list_ids(block, feature)
    nulls = column_mask(block, feature.name)
    what = f"{_place(block, 0)}, column {feature.name!r}"
    try:
        values = as_ids(primitive_values(flat), what)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None
    mask = null_mask(flat)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    if feature.missing == "raise" and (nulls is not None or mask is not None):
        rows = np.concatenate(
            [np.flatnonzero(nulls) if nulls is not None else [], row_of[mask] if mask is not None else []]
        )
        raise _missing(block, feature, int(rows.min()))
    if feature.missing == "drop":
        if mask is None:
            return Ragged(IdColumn(table, values), lengths)
        kept = np.bincount(row_of[~mask], minlength=len(lengths)).astype(np.int32)
        return Ragged(IdColumn(table, np.ascontiguousarray(values[~mask])), kept)
    if nulls is None:
        return Ragged(IdColumn(table, *_zeroed(feature, values, mask)), lengths)
    at = (np.cumsum(lengths) - lengths)[nulls]  # a null list gets one missing id, in its place
    values = np.insert(values, at, 0)
    mask = np.insert(mask if mask is not None else np.zeros(len(values) - len(at), np.bool_), at, True)
    lengths[nulls] = 1
    return Ragged(IdColumn(table, *_zeroed(feature, values, mask)), lengths)


def _zeroed(
    feature: Sparse, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """(ids, missing) where ``missing="zero"`` makes missing ids 0."""
    if mask is None or feature.missing != "zero":
        return values, mask
    return np.where(mask, values.dtype.type(0), values), None


def _missing(block: RowBlock, feature: Sparse, row: int) -> ValueError:
    return ValueError(f"{_place(block, row)}, column {feature.name!r}: missing, and the schema says missing='raise'")


def primitive_offsets(array: pa.ListArray) -> npt.NDArray[np.int64]:
    """int64 [n + 1]: list offsets of the array's own slice."""
    if len(array) == 0:
        return np.zeros(1, np.int64)
    width = np.int64 if pa.types.is_large_list(array.type) else np.int32
    raw = np.frombuffer(array.buffers()[1], width, count=array.offset + len(array) + 1)
    return raw[array.offset :].astype(np.int64)


def as_ids(values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """Ids as unsigned words: uint32 as it is, 64-bit values by their bits."""
    if values.dtype == np.uint32:
        return values
    if values.dtype in (np.uint64, np.int64):
        return values.view(np.uint64)
    raise TypeError(f"{what}: ids of type {values.dtype} are not uint32, uint64 or int64")
