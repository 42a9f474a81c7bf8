"""Checks of the arguments that users give: refused at construction, by name, before anything can hang on them."""

from __future__ import annotations

from typing import Any


def at_least(name: str, value: Any, least: int) -> int:
    """`value` if it is a true integer (no bool, no float) of at least `least`, else ValueError."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ValueError(f"{name}={value!r} is not an integer of at least {least}")
    return int(value)
