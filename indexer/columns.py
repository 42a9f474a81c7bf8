"""Checks of what goes into the index: tables once, columns at every batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.indexer.checks import check_integer
from headrace.indexer.indexed import U32, U64, IdColumn, IndexTable

MAX_TABLES = 1 << 16
"""The index entry has 16 bits for the table's ordinal."""

MAX_THREADS = 256

NNZ_LIMIT = (1 << 31) - 1
"""Most ids of one group in one batch: query ids are 32-bit, and signed ones must do for them elsewhere."""


class CheckedColumn(NamedTuple):
    """A column that the kernels take on trust: C-contiguous, aligned, native byte order; `missing` uint8 or None."""

    table: int
    values: U32 | U64
    missing: npt.NDArray[np.uint8] | None


def check_tables(tables: Sequence[IndexTable]) -> tuple[IndexTable, ...]:
    """The tables, as plain integers. ValueError for two that share a uid, or a number out of its range."""
    if len(tables) > MAX_TABLES:
        raise ValueError(f"{len(tables)} tables; the index holds at most {MAX_TABLES}")
    ordinal_of: dict[int, int] = {}
    checked = []
    for ordinal, table in enumerate(tables):
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
    """Columns ready for a kernel; copies only what is strided, unaligned or byte-swapped.

    TypeError for ids that are not uint32, uint64 or int64 (viewed as uint64), or a mask that is not bool; ValueError
    for a wrong shape, an unknown table, or more than `NNZ_LIMIT` ids in a group. Each names the column's position.
    """
    nnz = [0] * count_groups(tables)
    for position, column in enumerate(columns):
        _check_shape(position, column, len(tables))
        group = tables[column.table].group
        nnz[group] += len(column.values)
        if nnz[group] > NNZ_LIMIT:
            raise ValueError(
                f"group {group} has {nnz[group]} ids up to column {position}; a batch holds at most {NNZ_LIMIT} a "
                f"group: make the batch smaller"
            )
    return [_checked(column) for column in columns]


def _check_shape(position: int, column: IdColumn, num_tables: int) -> None:
    check_integer(f"table of column {position}", column.table, 0, num_tables - 1)
    values, missing = column.values, column.missing
    if not isinstance(values, np.ndarray) or (values.dtype.kind, values.dtype.itemsize) not in _ID_KINDS:
        what = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise TypeError(
            f"ids of column {position} (table {column.table}) are {what}; they must be a uint32 or uint64 array "
            f"(a float cannot hold every id)"
        )
    if values.ndim != 1:
        raise ValueError(f"ids of column {position} have shape {values.shape}; they must be one-dimensional")
    if missing is None:
        return
    if not isinstance(missing, np.ndarray) or missing.dtype != np.bool_:
        raise TypeError(f"mask of missing values of column {position} must be a bool array")
    if missing.shape != values.shape:
        raise ValueError(f"column {position} has ids of shape {values.shape} and a mask of shape {missing.shape}")


_ID_KINDS = {("u", 4), ("u", 8), ("i", 8)}


def _checked(column: IdColumn) -> CheckedColumn:
    values = np.require(column.values, column.values.dtype.newbyteorder("="), ["C", "A"])
    if values.dtype.kind == "i":
        values = values.view(np.uint64)
    missing = None
    if column.missing is not None:
        missing = np.require(column.missing, np.bool_, ["C", "A"]).view(np.uint8)
    return CheckedColumn(int(column.table), values, missing)
