"""Checks of integers that come from outside: arguments, positions, manifests."""

from __future__ import annotations

import operator


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """`value` as an int; TypeError unless it is an integer (a bool is none), ValueError unless low <= value <= high.

    Anything with ``__index__`` is an integer, so that NumPy's are.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name}={value!r} is not an integer")
    number = operator.index(value)  # type: ignore[arg-type]
    if not low <= number <= high:
        raise ValueError(f"{name}={number} is not from {low} to {high}")
    return number
