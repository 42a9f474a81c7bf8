"""What makes two schemas different for a stage, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.formats.schema import Schema

_KINDS = ("dense", "sparse", "tables")
_MOST = 3
"""So many columns or tables are named."""


def same_rows(one: Schema, other: Schema) -> bool:
    """Whether the schemas are equal but for their labels, which rows do not depend on."""
    return one is other or all(getattr(one, kind) == getattr(other, kind) for kind in _KINDS)


def differences(one: Schema, other: Schema, names: tuple[str, str], *, labels: bool = True) -> str:
    """A phrase for each kind of column or table that differs; `names` are those of the two schemas."""
    return plain_differences(one.to_dict(), other.to_dict(), names, labels=labels)


def plain_differences(
    before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str], *, labels: bool = True
) -> str:
    """:func:`differences` of schemas as plain data."""
    kinds = ("labels", *_KINDS) if labels else _KINDS
    return "; ".join(_of_kind(kind, before[kind], after[kind], names) for kind in kinds if before[kind] != after[kind])


def _of_kind(kind: str, before: list[dict[str, Any]], after: list[dict[str, Any]], names: tuple[str, str]) -> str:
    one, other = ({item["name"]: item for item in items} for items in (before, after))
    said = []
    for mine, theirs, whose in ((one, other, names[0]), (other, one, names[1])):
        alone = [repr(name) for name in mine if name not in theirs]
        said += [f"only in {whose} {_first(alone)}"] if alone else []
    changed = [_change(name, one[name], other[name]) for name in one if name in other and one[name] != other[name]]
    said += [f"{_first(changed)} (in {names[0]} and {names[1]})"] if changed else []
    return f"{kind}: {', '.join(said) or 'in another order'}"


def _change(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return f"{name!r} " + ", ".join(f"{key} {_value(one, key)} and {_value(other, key)}" for key in keys)


def _value(item: Mapping[str, Any], key: str) -> str:
    """Plain data of a schema leaves out some options that have their default."""
    return repr(item[key]) if key in item else "(default)"


def _first(items: list[str]) -> str:
    more = len(items) - _MOST
    return ", ".join(items[:_MOST]) + (f" and {more} more" if more > 0 else "")
