"""Checks of options, at construction: a wrong value is refused where it was written, not hours later."""

from __future__ import annotations

import operator


def check_int(owner: str, name: str, value: object, *, minimum: int) -> int:
    """`value` as an int of at least `minimum`; bool, float and anything else raise ValueError."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{owner}: {name} is an integer of at least {minimum}, got {value!r}")
    number = operator.index(value)  # type: ignore[arg-type]
    if number < minimum:
        raise ValueError(f"{owner}: {name} is an integer of at least {minimum}, got {value!r}")
    return number


def check_timeout_s(owner: str, name: str, value: object) -> float | None:
    """`value` as positive seconds, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{owner}: {name} is a positive number of seconds or None, got {value!r}")
    return float(value)
