"""The transpose of a batch's query ids: for each unique row, where it occurs.

With it the backward pass is a segment sum: no sorting and no atomics on the device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.ingest._transpose import transpose_impl

I64 = npt.NDArray[np.int64]


def transpose_query_ids(query_ids: npt.NDArray[np.uint32], num_unique: int) -> tuple[I64, I64, I64]:
    """(query ids int64 [nnz], positions int64 [nnz], offsets int64 [num_unique + 1]).

    Unique row u occurs at ``positions[offsets[u]:offsets[u + 1]]``, ascending. An id that is not below `num_unique`
    raises IndexError.
    """
    if num_unique < 0:
        raise ValueError(f"num_unique={num_unique} is negative")
    nnz = len(query_ids)
    wide, positions, offsets = np.empty(nnz, np.int64), np.empty(nnz, np.int64), np.empty(num_unique + 1, np.int64)
    transpose_impl(np.ascontiguousarray(query_ids, np.uint32), num_unique, wide, positions, offsets)
    return wide, positions, offsets


def transpose_query_ids_py(query_ids: npt.NDArray[np.uint32], num_unique: int) -> tuple[I64, I64, I64]:
    """The same, in NumPy: the twin that the native one is tested against."""
    wide = np.asarray(query_ids, np.uint32).astype(np.int64)
    if wide.size and int(wide.max()) >= num_unique:
        raise IndexError(f"query id {int(wide.max())} is not below {num_unique} unique rows")
    counts = np.bincount(wide, minlength=num_unique).astype(np.int64)
    return wide, np.argsort(wide, kind="stable").astype(np.int64), np.concatenate(([0], np.cumsum(counts)))
