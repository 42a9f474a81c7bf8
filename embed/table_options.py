"""Options of the stage that name tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.embed.initializer import Initializer, Uniform
from headrace.formats.schema import Schema


def check_tables(option: str, names: Collection[str], schema: Schema) -> frozenset[str]:
    """`names` as a set; TypeError for one string, ValueError for a name that is no table of the schema."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Collection):
        raise TypeError(f"{option}={names!r} is not a collection of names of tables")
    known = [table.name for table in schema.tables]
    for name in names:
        if name not in known:
            raise ValueError(f"{option}: {name!r} is not a table of the schema; its tables: {', '.join(known)}")
    return frozenset(names)


def split_initializers(
    initializer: Initializer | Mapping[str, Initializer] | None, schema: Schema
) -> tuple[Initializer, dict[str, Initializer]]:
    """(initialiser of the tables that have none of their own, those of single tables)."""
    if initializer is None:
        return Uniform(), {}
    if isinstance(initializer, Initializer):
        return initializer, {}
    if not isinstance(initializer, Mapping):
        raise TypeError(f"initializer={initializer!r} is neither an initialiser nor a mapping from table to one")
    check_tables("initializer", list(initializer), schema)
    for name, one in initializer.items():
        if not isinstance(one, Initializer):
            raise TypeError(f"initializer: that of table {name!r} is {one!r}, not an initialiser")
    return Uniform(), dict(initializer)
