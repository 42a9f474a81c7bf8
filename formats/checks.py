"""Checks of what comes from outside, arguments above all: a message names what is wanted and how to get it."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Mapping
from numbers import Real


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


def check_type(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """TypeError unless `value` is a `kind`; `wanted` says what that is, and how to get one."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {wanted}, not a {type(value).__name__}")


def check_types(name: str, values: object, kind: type, wanted: str) -> None:
    """TypeError unless `values` can be gone through and has nothing but a `kind`; `wanted` is in the plural."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Collection):
        raise TypeError(f"{name} are {wanted}, in a list or tuple, not a {type(values).__name__}")
    for one in values:
        check_type(f"each of {name}", one, kind, wanted)


def check_flag(name: str, value: object) -> bool:
    """`value`, which must be a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}, not a bool")
    return value


def check_seconds(name: str, value: object, low: float, high: float) -> float:
    """`value` as a number of seconds in [low, high]; TypeError for what is no number, ValueError for another one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}, not a number of seconds")
    if not low <= float(value) <= high:
        raise ValueError(f"{name}={value!r} is not seconds from {low:g} to {high:g}")
    return float(value)


def check_text(name: str, value: object) -> str:
    """`value`, which must be a str."""
    check_type(name, value, str, "a str")
    return str(value)


def check_paths(value: object) -> None:
    """TypeError unless `value` is a path or can be gone through: what its parts are is seen when they are listed."""
    if not isinstance(value, (str, bytes, os.PathLike)) and not hasattr(type(value), "__iter__"):
        raise TypeError(f"paths are a path, pattern or folder, or a list of such, not a {type(value).__name__}")
