"""Checks of numbers that a user passes; the messages name the argument and its value."""

from __future__ import annotations

import operator
from numbers import Real
from typing import SupportsIndex

import numpy as np


def check_integer(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """`value`, of any type with ``__index__`` but bool, as an int.

    TypeError for what is no integer, ValueError for one that is not in [least, most].
    """
    number = value if type(value) is int else _as_integer(name, value)  # a step checks some
    if number < least:
        raise ValueError(f"{name}={number} is not at least {least}")
    if most is not None and number > most:
        raise ValueError(f"{name}={number} is above {most}")
    return number


def _as_integer(name: str, value: object) -> int:
    try:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, SupportsIndex):
            raise TypeError
        return operator.index(value)
    except TypeError:  # also an array or tensor that is not one integer
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}, not an integer") from None


def check_number(name: str, value: object) -> float:
    """`value` as a float; TypeError unless it is a real number and no bool, ValueError for one beyond all floats."""
    if type(value) is float:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}, not a number")
    try:
        return float(value)
    except OverflowError as error:  # an integer or a fraction
        raise ValueError(f"{name} is beyond the largest float: {error}") from None
