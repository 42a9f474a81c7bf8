"""Samples joined with other tables as they are decoded: a streaming left join, and histories up to a sample's time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.formats.arrow_arrays import to_arrow
from headrace.formats.checks import check_text, check_type, check_types
from headrace.formats.delimited_format import TextFormat
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.files import PathLike
from headrace.formats.history_store import HistoryStore
from headrace.formats.schema import Dense, Schema, SchemaError, Sparse, check_schema
from headrace.formats.side_table import SideTable, check_key, key_words
from headrace.formats.text_blocks import TextBlock
from headrace.formats.unmatched import JoiningReader

DEFAULT_MAX_LENGTH = 50


@dataclass(frozen=True)
class Join:
    """Columns of `table` for each row, found by the row's column `key`; null where the table has no such row."""

    name: str
    table: SideTable
    key: str

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_type("table", self.table, SideTable, "a headrace.SideTable, as SideTable(reader, key)")
        check_text("key", self.key)


@dataclass(frozen=True)
class HistoryJoin:
    """What `store` has of a row's `key` from before its `time`: list columns {column of the schema: of the store}.

    A row without any gets an empty list.
    """

    name: str
    store: HistoryStore
    key: str
    time: str
    columns: Mapping[str, str]

    def __post_init__(self) -> None:
        for part in ("name", "key", "time"):
            check_text(part, getattr(self, part))
        check_type("store", self.store, HistoryStore, "a headrace.HistoryStore, as HistoryStore(folder)")
        check_type("columns", self.columns, Mapping, 'a mapping from schema to store, as {"history": "item"}')


class JoinedFiles(JoiningReader[TextBlock], DelimitedFiles):
    """:class:`DelimitedFiles` whose schema also takes columns of other tables, joined by the threads that decode.

    No row is left out for want of a match: what is joined is missing then, and `rows_unmatched` counts it for each join
    (over the blocks of this pass that were settled). Columns are looked for in `joins` in their order, then in
    `histories`, then in the files. Of a history the newest ``max_length`` rows are taken (50 where the schema does not
    say), oldest first. Bad values of a side table are that table's matter: it was read before.
    """

    def __init__(
        self,
        paths: PathLike | Iterable[PathLike],
        schema: Schema,
        text_format: TextFormat,
        *,
        joins: Sequence[Join] = (),
        histories: Sequence[HistoryJoin] = (),
        **options: Any,
    ) -> None:
        check_schema(schema)
        check_types("joins", joins, Join, "headrace.Join, as Join(name, table=SideTable(...), key=...)")
        check_types("histories", histories, HistoryJoin, "headrace.HistoryJoin")
        self._joins, self._histories = tuple(joins), tuple(histories)
        self._check_joins(schema)
        self._from = self._origins(schema)
        super().__init__(paths, self._file_schema(schema), text_format, **options)
        self.schema = schema
        self._joined_schema = schema.arrow_schema(labels=bool(schema.labels))
        side = [path for join in self._joins for path in join.table.files]
        side += [path for history in self._histories for path in history.store.paths]
        names = (*(j.name for j in self._joins), *(h.name for h in self._histories))
        self._joins_are(names, tuple(side), {j.name: j.table.rows_skipped for j in self._joins})

    def _check_joins(self, schema: Schema) -> None:
        """SchemaError for joins of one name, keys and times that are no ids, and columns that no history has."""
        tables: tuple[Join | HistoryJoin, ...] = (*self._joins, *self._histories)
        names = [table.name for table in tables]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SchemaError(f"two joins have the name {twice!r}, by which their misses are counted")
        for table in tables:
            check_key(schema, table.key, f"the join {table.name!r}")
        for history in self._histories:
            check_key(schema, history.time, f"the join {history.name!r}")
            if unknown := sorted(set(history.columns.values()) - set(history.store.columns)):
                has = ", ".join(history.store.columns)
                raise SchemaError(f"the join {history.name!r}: its log has no column {unknown[0]!r}; it has {has}")

    def _origins(self, schema: Schema) -> dict[str, Join | HistoryJoin]:
        """Where each column that is not in the files comes from."""
        origins: dict[str, Join | HistoryJoin] = {}
        columns: tuple[Dense | Sparse, ...] = (*schema.dense, *schema.stored_sparse)
        for column in columns:
            history = next((h for h in self._histories if column.name in h.columns), None)
            join = next((j for j in self._joins if column.name in j.table.columns), None)
            if join is not None:
                if join.table.columns[column.name].type != column.arrow_type:
                    raise SchemaError(
                        f"column {column.name!r}: {join.name} was read as {join.table.columns[column.name].type}, the "
                        f"schema declares {column.arrow_type}"
                    )
                origins[column.name] = join
            elif history is not None:
                if not isinstance(column, Sparse) or not column.multi_hot or column.encoding not in ("uint64", "int64"):
                    raise SchemaError(f"column {column.name!r}: a history is a multi_hot column of uint64 or int64")
                origins[column.name] = history
        return origins

    def _file_schema(self, schema: Schema) -> Schema:
        """What is read from the files: the schema's other columns, and the keys and times of the joins."""
        dense = tuple(d for d in schema.dense if d.name not in self._from)
        sparse = [s for s in schema.stored_sparse if s.name not in self._from]
        names = {d.name for d in dense} | {s.name for s in sparse}
        tables: tuple[Join | HistoryJoin, ...] = (*self._joins, *self._histories)
        for join in tables:
            if not any(origin is join for origin in self._from.values()):
                continue
            keys = {join.key: "uint64"} | ({join.time: "int64"} if isinstance(join, HistoryJoin) else {})
            for name, encoding in keys.items():
                if name not in names:
                    sparse.append(Sparse(name=name, encoding=encoding))  # type: ignore[arg-type]
                    names.add(name)
        return Schema(labels=schema.labels, dense=dense, sparse=tuple(sparse))

    def _joined(self, data: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        found: dict[str, pa.Array] = {}
        unmatched = {}
        for join in self._joins:
            taken = [name for name, origin in self._from.items() if origin is join]
            if taken:
                rows, there = join.table.find(*key_words(data.column(join.key)))
                unmatched[join.name] = int(np.count_nonzero(~there))
                found |= {name: join.table.take(name, rows, there) for name in taken}
        for history in self._histories:
            taken = [name for name, origin in self._from.items() if origin is history]
            if taken:
                lists, unmatched[history.name] = self._history(data, history, taken)
                found |= lists
        columns = [found[n] if n in found else data.column(n) for n in self._joined_schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._joined_schema), unmatched

    def _history(
        self, data: pa.RecordBatch, history: HistoryJoin, taken: Sequence[str]
    ) -> tuple[dict[str, pa.Array], int]:
        """(list columns, rows without any history)"""
        keys, missing = key_words(data.column(history.key))
        times, no_time = key_words(data.column(history.time))
        unknown = np.zeros(len(keys), np.bool_)
        for mask in (missing, no_time):
            unknown |= False if mask is None else mask
        by_length: dict[int, Any] = {}
        lists = {}
        for name in taken:
            column = next(s for s in self.schema.sparse if s.name == name)
            length = column.max_length or DEFAULT_MAX_LENGTH
            if length not in by_length:
                by_length[length] = history.store.before(keys, times.view(np.int64), length, known=~unknown)
            rows = by_length[length]
            ids, null = history.store.values(history.columns[name], rows.rows)
            elements = to_arrow(ids, null, column.arrow_type.value_type)
            offsets = pa.array(np.append(0, np.cumsum(rows.lengths, dtype=np.int64)).astype(np.int32))
            lists[name] = pa.ListArray.from_arrays(offsets, elements, type=column.arrow_type)
        return lists, int(np.count_nonzero(next(iter(by_length.values())).lengths == 0))
