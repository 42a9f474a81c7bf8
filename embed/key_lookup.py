"""From raw ids of tables to rows, by an index: for callers without a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headrace.embed.arrays import I64, U64, Bool, array_of
from headrace.embed.row_keys import RowKeys
from headrace.formats.checks import check_type
from headrace.formats.schema import Schema
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexedIds, IndexTable


class FindsRows(Protocol):
    """The part of an index (:class:`headrace.DIT`) that is needed to look keys up and to insert them."""

    @property
    def tables(self) -> tuple[IndexTable, ...]: ...
    def index(self, columns: Sequence[IdColumn]) -> IndexedIds: ...
    def lookup(self, columns: Sequence[IdColumn]) -> IndexedIds: ...
    def commit(self, ticket: int) -> None: ...
    def undo_after(self, ticket: int | None) -> None: ...
    def claim_writer(self, owner: object) -> None: ...
    def release_writer(self, owner: object) -> None: ...
    def snapshot(self) -> pa.Table: ...


def check_finds_rows(index: object) -> None:
    """TypeError for what is no index."""
    if not all(hasattr(index, name) for name in ("tables", "index")):
        check_type("index", index, DIT, "a headrace.DIT, as loader.index")


class TableIds(NamedTuple):
    """Ids of one table, in any order and with repetitions: uint64 [n], and bool [n] or None where all are present."""

    ids: U64
    missing: Bool | None = None


class TableRows(NamedTuple):
    """The unique rows of one table: `query_ids` int64 [n] is the position of each id in `keys` [U]; `group` is the
    number of the table's row layout."""

    query_ids: I64
    keys: RowKeys
    group: int


def group_of_tables(schema: Schema) -> dict[str, int]:
    """Number of the row layout of each table."""
    return {schema.tables[t].name: group.ordinal for group in schema.groups for t in group.tables}


def check_ids(table: str, ids: Any) -> U64:
    """`ids` (integers of up to 64 bits, 1-D) as uint64 [n]; negative ones as their bits. TypeError or ValueError."""
    array = _of_list(table, ids) if isinstance(ids, (list, tuple)) else array_of(ids, f"table {table!r}: ids")
    if array.dtype.kind not in "iu":
        raise TypeError(f"table {table!r}: ids of {array.dtype}, not integers of up to 64 bits")
    if array.ndim != 1:
        raise ValueError(f"table {table!r}: ids of shape {list(array.shape)}, not [n]")
    wide = array.astype(np.int64 if array.dtype.kind == "i" else np.uint64)
    return np.ascontiguousarray(wide).view(np.uint64)


def _of_list(table: str, ids: Sequence[Any]) -> U64:
    """Python's integers as uint64 [n]; NumPy would round some of them to floats."""
    for raw in ids:
        if isinstance(raw, bool) or not isinstance(raw, (int, np.integer)) or not -(1 << 63) <= raw < 1 << 64:
            raise TypeError(f"table {table!r}: ids of which one is {raw!r}, not an integer of up to 64 bits")
    return np.array([int(raw) % (1 << 64) for raw in ids], np.uint64)


def find_rows(
    index: FindsRows, schema: Schema, ids: Mapping[str, TableIds], owner: object, *, insert: bool
) -> dict[str, TableRows]:
    """The rows of ids of tables. With `insert`, unknown keys get rows at once; without it their location is ABSENT.

    ValueError for an unknown table, or an index that was made for other tables; RuntimeError, from the index, if a
    loader has read ahead into it and `insert` is asked for. On an error nothing was inserted.
    """
    ordinals = {table.uid: ordinal for ordinal, table in enumerate(index.tables)}
    uids = {table.name: table.uid for table in schema.tables}
    columns = []
    for name, one in ids.items():
        if name not in uids:
            raise ValueError(f"{name!r} is not a table of the schema; its tables: {', '.join(uids)}")
        if uids[name] not in ordinals:
            raise ValueError(f"the index was made without table {name!r}")
        columns.append(IdColumn(ordinals[uids[name]], one.ids, one.missing))
    groups = group_of_tables(schema)
    order = sorted(range(len(columns)), key=lambda c: groups[list(ids)[c]])  # the index wants groups one after another
    names, columns = [list(ids)[c] for c in order], [columns[c] for c in order]
    if not columns:
        return {}
    if not insert:
        return _by_table(index.lookup(columns), names, columns, uids, groups)
    index.claim_writer(owner)
    try:
        try:
            found = index.index(columns)
            rows = _by_table(found, names, columns, uids, groups)
            if found.ticket is not None:
                index.commit(found.ticket)
        except BaseException:  # nobody else may write: no other batch is uncommitted
            index.undo_after(None)
            raise
    finally:
        index.release_writer(owner)
    return rows


def _by_table(
    found: IndexedIds,
    names: Sequence[str],
    columns: Sequence[IdColumn],
    uids: Mapping[str, int],
    groups: Mapping[str, int],
) -> dict[str, TableRows]:
    starts = dict.fromkeys(range(len(found.groups)), 0)
    rows = {}
    for name, column in zip(names, columns, strict=True):
        group = found.groups[groups[name]]
        begin = starts[groups[name]]
        starts[groups[name]] = begin + len(column.values)
        at = group.tables.index(column.table)
        first, last = int(group.table_offsets[at]), int(group.table_offsets[at + 1])
        keys = RowKeys(
            group.locations[first:last],
            group.unique_ids[first:last],
            np.full(last - first, uids[name], np.uint32),
            group.missing[first:last],
        )
        query_ids = group.query_ids[begin : begin + len(column.values)].astype(np.int64) - first
        rows[name] = TableRows(query_ids, keys, groups[name])
    return rows
