"""Transforms of dense values that a schema declares: each value by itself, by constants of the dataset."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.formats.schema import Dense

F64 = npt.NDArray[np.float64]

_LARGEST = float(np.finfo(np.float32).max)


def transformed(values: F64, column: Dense) -> F64:
    """The values of a column [n] under its transform, finite as float32 wherever they were finite.

    Values that are not finite stay so, for the caller to refuse: no transform hides them.
    """
    if column.transform == "identity":
        return values
    if column.transform == "log1p":
        found = np.log1p(np.maximum(values, 0.0))
    elif column.transform == "log_plus_3":
        found = np.log(np.maximum(values, -2.0) + 3.0)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.clip((values - column.mean) / column.std, -_LARGEST, _LARGEST)
    wrong = ~np.isfinite(values)
    return np.where(wrong, values, found) if wrong.any() else found
