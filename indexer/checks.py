"""The rules for integers, numbers and arrays of locations in arguments."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """`value` as an int in [low, high]: anything with ``__index__`` but a bool.

    TypeError for another type, ValueError for a number out of range; both name it.
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}; it must lie in [{low}, {high}]")
    return number


def check_number(name: str, value: object, low: float, high: float) -> float:
    """`value` as a float in [low, high]: a number of Python or NumPy, but no bool, no complex number, no array.

    TypeError for another type, ValueError for a number out of range or NaN; both name it.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    number: Any = value  # types know no order of Real
    if not low <= number <= high:
        raise ValueError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}")
    return float(number)


def check_locations(name: str, value: object) -> npt.NDArray[np.uint64]:
    """`value`, a uint64 array [n], contiguous and in this machine's byte order; copied only if it was not.

    TypeError for what is no NumPy array or of another dtype (a float above 2^53 is no location exactly), ValueError for
    another number of dimensions.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind != "u" or value.dtype.itemsize != 8:
        what = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"{name} must be a uint64 array, not {what}")
    if value.ndim != 1:
        raise ValueError(f"{name} have shape {value.shape}; they must be one-dimensional")
    return np.require(value, np.uint64, ["C", "A"])
