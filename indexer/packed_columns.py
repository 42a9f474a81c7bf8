"""Many short columns in few arrays, as owners get them from ranks: 26 tables of 64 ranks are 1,664 columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.indexer.columns import NNZ_LIMIT, CheckedColumn, check_columns, count_groups
from headrace.indexer.indexed import I64, U64, IdColumn, IndexTable

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PackedColumns:
    """The columns of S senders, T each: sender after sender, table after table.

    A column without ids is left out, but for the first sender's, so that every table occurs, in this order.

    ============ ================ =====================================================================
    `tables`     int64 [T]        ordinals
    `ids`        S times uint64   the ids of each sender, table after table
    `counts`     int64 [S, T]     how many each table has
    `missing_at` int64 [S, T]     which id of the column stands for the missing value; -1: none
    ============ ================ =====================================================================
    """

    tables: I64
    ids: Sequence[U64]
    counts: I64
    missing_at: I64


class CheckedPacked(NamedTuple):
    """As `PackedColumns`, for kernels to take on trust; `flags[s]` uint8, 1 where an id of sender s stands for the
    missing value, or None where none does."""

    tables: I64
    ids: list[U64]
    counts: I64
    missing_at: I64
    flags: list[U8 | None]

    def columns(self) -> list[CheckedColumn]:
        """One by one: what the kernels make of it."""
        out = []
        for sender, (ids, flags) in enumerate(zip(self.ids, self.flags, strict=True)):
            ends = np.cumsum([0, *self.counts[sender].tolist()]).tolist()
            for t, (start, end) in enumerate(pairwise(ends)):
                if end > start or not sender:
                    lost = flags is not None and self.missing_at[sender, t] >= 0
                    mask = flags[start:end] if lost and flags is not None else None
                    out.append(CheckedColumn(int(self.tables[t]), ids[start:end], mask))
        return out


Checked: TypeAlias = "list[CheckedColumn] | CheckedPacked"


def checked(columns: Sequence[IdColumn] | PackedColumns, tables: Sequence[IndexTable]) -> Checked:
    """Columns ready for a kernel; see :func:`~headrace.indexer.columns.check_columns`, and for packed ones below."""
    return _checked(columns, tables) if isinstance(columns, PackedColumns) else check_columns(columns, tables)


def _checked(columns: PackedColumns, tables: Sequence[IndexTable]) -> CheckedPacked:
    """ValueError for what does not fit together: unknown tables, counts that are not those of the ids, a missing value
    outside of its column, more than `NNZ_LIMIT` ids in a group."""
    order = np.ascontiguousarray(columns.tables, np.int64)
    counts = np.ascontiguousarray(columns.counts, np.int64)
    missing_at = np.ascontiguousarray(columns.missing_at, np.int64)
    ids = [np.ascontiguousarray(one, np.uint64) for one in columns.ids]
    shape = (len(ids), len(order))
    if counts.shape != shape or missing_at.shape != shape:
        raise ValueError(f"counts {counts.shape} and missing values {missing_at.shape} of {shape} columns")
    if len(order) and not 0 <= order.min() <= order.max() < len(tables):
        raise ValueError(f"tables {order.tolist()} of {len(tables)}")
    if (counts < 0).any() or (missing_at >= np.maximum(counts, 1)).any():
        raise ValueError("a column has fewer than no ids, or its missing value is not in it")
    if counts.sum(axis=1).tolist() != [len(one) for one in ids]:
        raise ValueError(f"{[len(one) for one in ids]} ids of columns with {counts.sum(axis=1).tolist()}")
    nnz = np.zeros(count_groups(tables), np.int64)
    np.add.at(nnz, [tables[t].group for t in order.tolist()], counts.sum(axis=0))
    if (nnz > NNZ_LIMIT).any():
        raise ValueError(f"groups of {nnz.tolist()} ids; a batch holds at most {NNZ_LIMIT} a group")
    missing_at = np.where(counts > 0, missing_at, -1)
    return CheckedPacked(order, ids, counts, missing_at, _flags(ids, counts, missing_at))


def _flags(ids: list[U64], counts: I64, missing_at: I64) -> list[U8 | None]:
    starts = np.cumsum(counts, axis=1) - counts
    flags: list[U8 | None] = []
    for sender, one in enumerate(ids):
        lost = missing_at[sender] >= 0
        mask = np.zeros(len(one), np.uint8) if lost.any() else None
        if mask is not None:
            mask[(starts[sender] + missing_at[sender])[lost]] = 1
        flags.append(mask)
    return flags
