"""The one rule for integers in arguments."""

from __future__ import annotations

import operator

import numpy as np


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
