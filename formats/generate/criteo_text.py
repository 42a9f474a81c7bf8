"""Rows as lines of Criteo text: the checked front of the native formatter."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.formats.generate import _format


def format_criteo(
    labels: npt.NDArray[np.uint8] | None,
    dense: npt.NDArray[np.int64],
    dense_valid: npt.NDArray[np.bool_],
    ids: npt.NDArray[np.uint32],
    ids_valid: npt.NDArray[np.bool_],
) -> bytes:
    """Lines of Criteo text: label, dense values, ids, separated by tabs, each line ended by LF.

    labels: uint8 [rows] of 0 and 1, or None for lines without that field
    dense: int64 [n_dense, rows], decimal; dense_valid: bool, same shape; False gives an empty field
    ids: uint32 [n_sparse, rows], 8 lower-case hexadecimal digits; ids_valid: bool, same shape

    All arrays are C-contiguous and may be read-only; the bytes are new. The GIL is released while they are written.
    Raises TypeError for a wrong dtype, ValueError for a wrong shape, layout or label (naming the row).
    """
    check_columns(labels, dense, dense_valid, ids, ids_valid)
    return _format.format_columns(labels, dense, dense_valid, ids, ids_valid)


def check_columns(
    labels: npt.NDArray[np.uint8] | None,
    dense: npt.NDArray[np.int64],
    dense_valid: npt.NDArray[np.bool_],
    ids: npt.NDArray[np.uint32],
    ids_valid: npt.NDArray[np.bool_],
) -> None:
    """Raise TypeError or ValueError unless the arrays are what :func:`format_criteo` says."""
    arrays: dict[str, tuple[Any, Any, int]] = {
        "dense": (dense, np.int64, 2),
        "dense_valid": (dense_valid, np.bool_, 2),
        "ids": (ids, np.uint32, 2),
        "ids_valid": (ids_valid, np.bool_, 2),
    }
    if labels is not None:
        arrays["labels"] = (labels, np.uint8, 1)
    for name, (array, dtype, dimensions) in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            raise TypeError(f"{name}: needs an array of {np.dtype(dtype)}, got {getattr(array, 'dtype', type(array))}")
        if array.ndim != dimensions or not array.flags.c_contiguous:
            raise ValueError(f"{name}: needs {dimensions} dimensions, C-contiguous, got shape {array.shape}")
    rows = dense.shape[1]
    if dense_valid.shape != dense.shape or ids_valid.shape != ids.shape or ids.shape[1] != rows:
        raise ValueError(
            f"shapes differ: dense {dense.shape}, dense_valid {dense_valid.shape}, ids {ids.shape}, "
            f"ids_valid {ids_valid.shape}"
        )
    if labels is None:
        if not len(dense) + len(ids):
            raise ValueError("a line needs at least one field: no labels, no dense and no sparse columns")
        return
    if len(labels) != rows:
        raise ValueError(f"labels: {len(labels)} values for {rows} rows")
    (wrong,) = np.nonzero(labels > 1)
    if len(wrong):
        raise ValueError(f"labels: row {wrong[0]} has {labels[wrong[0]]}, which is not 0 or 1")
