"""Criteo text in plain Python: the readable twin of the native formatter, and the argument checks of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


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


def format_criteo(
    labels: npt.NDArray[np.uint8] | None,
    dense: npt.NDArray[np.int64],
    dense_valid: npt.NDArray[np.bool_],
    ids: npt.NDArray[np.uint32],
    ids_valid: npt.NDArray[np.bool_],
) -> bytes:
    """Same arguments, result and errors as ``_format.format_criteo``."""
    check_columns(labels, dense, dense_valid, ids, ids_valid)
    lines = []
    for row in range(dense.shape[1]):
        fields = [] if labels is None else [str(int(labels[row]))]
        fields += [str(int(v)) if ok else "" for v, ok in zip(dense[:, row], dense_valid[:, row], strict=True)]
        fields += [f"{int(v):08x}" if ok else "" for v, ok in zip(ids[:, row], ids_valid[:, row], strict=True)]
        lines.append("\t".join(fields) + "\n")
    return "".join(lines).encode("ascii")
