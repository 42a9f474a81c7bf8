"""Checks of what goes into the index: tables once, columns at every batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.indexer.arrow_arrays import holds_integers, integers
from headrace.indexer.checks import check_integer
from headrace.indexer.indexed import U32, U64, IdColumn, IndexTable

MAX_TABLES = 1 << 16
"""The index entry has 16 bits for the table's ordinal."""

MAX_THREADS = 256

NNZ_LIMIT = (1 << 31) - 1
"""Most ids of one group in one batch: query ids are 32-bit, and signed ones must do for them elsewhere."""


_TABLES = "give a list of IndexTable(uid, group): headrace.index_tables(schema) makes those of a schema"


class CheckedColumn(NamedTuple):
    """A column that the kernels take on trust: C-contiguous, aligned, native byte order; `missing` uint8 or None."""

    table: int
    values: U32 | U64
    missing: npt.NDArray[np.uint8] | None


def check_tables(tables: Sequence[IndexTable]) -> tuple[IndexTable, ...]:
    """The tables, as plain integers. ValueError for two that share a uid, or a number out of its range.

    None at all are legal, for batches that have no columns: a schema may have dense features alone.
    """
    if not isinstance(tables, Sequence):
        raise TypeError(f"tables are a {type(tables).__name__}; {_TABLES}")
    if len(tables) > MAX_TABLES:
        raise ValueError(f"{len(tables)} tables; the index holds at most {MAX_TABLES}")
    ordinal_of: dict[int, int] = {}
    checked = []
    for ordinal, table in enumerate(tables):
        if not isinstance(table, IndexTable):
            raise TypeError(f"table {ordinal} is a {type(table).__name__}; {_TABLES}")
        uid = check_integer(f"uid of table {ordinal}", table.uid, 0, (1 << 32) - 1)
        group = check_integer(f"group of table {ordinal}", table.group, 0, MAX_TABLES - 1)
        if uid in ordinal_of:
            raise ValueError(f"tables {ordinal_of[uid]} and {ordinal} have the same uid {uid}; rename one of them")
        ordinal_of[uid] = ordinal
        checked.append(IndexTable(uid, group))
    return tuple(checked)


def count_groups(tables: Sequence[IndexTable]) -> int:
    return max((t.group for t in tables), default=-1) + 1


def check_columns(columns: Sequence[IdColumn], tables: Sequence[IndexTable]) -> list[CheckedColumn]:
    """Columns ready for a kernel: 32-bit values as they are, all others as 64-bit words; nulls joined to the mask.

    uint32, uint64 and int64 values are copied only if they are strided, unaligned, byte-swapped, or in several chunks;
    those of dictionaries and of other widths always. TypeError for values that are not integers, or a mask that is not
    bool; ValueError for a wrong shape, an unknown table, an index outside its dictionary, or more than `NNZ_LIMIT` ids
    in a group. Each names the column's position.
    """
    if isinstance(columns, IdColumn) or not isinstance(columns, Sequence):  # an iterator would be empty the second time
        raise TypeError(f"columns are a {type(columns).__name__}; give a list of IdColumn(table, values)")
    nnz = [0] * count_groups(tables)
    for position, column in enumerate(columns):
        if not isinstance(column, IdColumn):
            raise TypeError(f"column {position} is a {type(column).__name__}; give a list of IdColumn(table, values)")
        if not _is_plain(column, len(tables)):
            _check_shape(position, column, len(tables))
        group = tables[column.table].group
        nnz[group] += len(column.values)
        if nnz[group] > NNZ_LIMIT:
            raise ValueError(
                f"group {group} has {nnz[group]} ids up to column {position}; a batch holds at most {NNZ_LIMIT} a "
                f"group: make the batch smaller"
            )
    return [_checked(position, column) for position, column in enumerate(columns)]


def _is_plain(column: IdColumn, num_tables: int) -> bool:
    """Whether the column is what most are, at a tenth of the time that the checks with their messages take."""
    table, values, missing = column.table, column.values, column.missing
    return (
        type(table) is int
        and 0 <= table < num_tables
        and type(values) is np.ndarray
        and values.dtype.kind in "ui"
        and values.ndim == 1
        and (
            missing is None
            or (type(missing) is np.ndarray and missing.dtype == np.bool_ and missing.shape == values.shape)
        )
    )


def _check_shape(position: int, column: IdColumn, num_tables: int) -> None:
    if num_tables == 0:
        raise ValueError(f"column {position} is of table {column.table}, and there are no tables; {_TABLES}")
    check_integer(f"table of column {position}", column.table, 0, num_tables - 1)
    values, missing = column.values, column.missing
    if problem := _not_integers(values):
        raise TypeError(f"ids of column {position} (table {column.table}) are {problem}")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(
            f"ids of column {position} have shape {values.shape}; they must be one-dimensional: give .reshape(-1)"
        )
    if missing is None:
        return
    mask = f"the mask `missing` of column {position} (table {column.table})"
    if not isinstance(missing, np.ndarray) or missing.dtype != np.bool_:
        what = f"of {missing.dtype}" if isinstance(missing, np.ndarray) else f"a {type(missing).__name__}"
        raise TypeError(f"{mask} is {what}; it must be a NumPy array of bool: give {_bool_array(missing)}")
    if missing.shape != (len(values),):
        raise ValueError(
            f"{mask} has shape {missing.shape}, and there are {len(values)} ids; give one flag an id, True where it is "
            "missing"
        )


def _bool_array(missing: object) -> str:
    """How a mask of another type becomes one."""
    if isinstance(missing, np.ndarray):
        return "(mask != 0), where what is not 0 means missing"
    if isinstance(missing, (pa.Array, pa.ChunkedArray)):
        return ".to_numpy(zero_copy_only=False) of it"
    return "np.array(mask, bool), True where a value is missing"


_FLOATS = "a float holds no integer above 2^53 exactly: read the column as integers, with nulls or a mask of missing"
_REMEDIES = {
    "f": _FLOATS,
    "b": "give .astype(np.uint32) if they are meant as ids",
    "O": "make an integer array of them, np.array(ids, np.uint64), and a mask of what is missing",
}
_TEXT = "hash or number the values first, into uint64"


def _not_integers(values: object) -> str:
    """What `values` are and what to do about it; "" for integers."""
    if isinstance(values, np.ma.MaskedArray):
        return "a masked array; give its .data, and its mask as `missing`"
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "ui":
            return ""
        if values.size == 0 and values.dtype == np.float64:  # np.array([]), which says nothing of what it holds
            return "float64, as np.array([]) is; they must be integers: np.array([], np.uint64) has none"
        return f"{values.dtype}; they must be integers: {_REMEDIES.get(values.dtype.kind, _TEXT)}"
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        how = "np.array(ids, np.uint64), tensor.numpy() or pa.array(series) makes one"
        return f"{type(values).__name__}; they must be a NumPy or Arrow array of integers: {how}"
    if holds_integers(values.type):
        return ""
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    remedy = _TEXT
    if pa.types.is_floating(kind):
        remedy = _FLOATS
    elif pa.types.is_decimal(kind) or pa.types.is_null(kind) or pa.types.is_boolean(kind):
        remedy = "give .cast(pa.int64()) of them"
    return f"{values.type}; they must be integers: {remedy}"


_WORDS = frozenset(map(np.dtype, (np.uint32, np.uint64, np.int64)))  # of this machine's byte order


def _checked(position: int, column: IdColumn) -> CheckedColumn:
    values, missing = column.values, column.missing
    if not isinstance(values, np.ndarray):
        try:
            values, nulls = integers(values)
        except ValueError as error:
            raise ValueError(f"ids of column {position} (table {column.table}): {error}") from None
        if nulls is not None:
            missing = nulls if missing is None else missing | nulls
    dtype, flags = values.dtype, values.flags
    if dtype not in _WORDS or not (flags.c_contiguous and flags.aligned):
        if dtype.itemsize < 8:
            dtype = np.dtype(np.int64 if dtype.kind == "i" else np.uint32)
        values = np.require(values, dtype.newbyteorder("="), ["C", "A"])
    words = cast("U32 | U64", values.view(np.uint64) if dtype.kind == "i" else values)
    mask = None if missing is None else np.ascontiguousarray(missing).view(np.uint8)
    return CheckedColumn(int(column.table), words, mask)
