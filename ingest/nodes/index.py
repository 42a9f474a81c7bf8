"""Index: rows in, rows with query ids and locations out; dedup and lookup in one native pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torchdata.nodes import BaseNode

from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexedGroup, IndexTable
from headrace.ingest.columns import Ragged, dense_matrix, id_column, label_matrix
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import State
from headrace.ingest.indexed_rows import I32, IndexedRows


def index_tables(schema: Schema) -> tuple[IndexTable, ...]:
    """The schema's tables as the index sees them, in schema order."""
    group_of = {t: g.ordinal for g in schema.groups for t in g.tables}
    return tuple(IndexTable(uid=t.uid, group=group_of[i]) for i, t in enumerate(schema.tables))


class Index(Node[IndexedRows]):
    """Look the ids of each row block up in the index; with ``insert=True`` unseen ids get a row.

    New rows are provisional until their batch is delivered to the trainer: `reset` and `close` undo the rest. With
    ``insert=False`` (evaluation) nothing is inserted and unknown ids have the location ABSENT.
    """

    def __init__(self, source: BaseNode[RowBlock], schema: Schema, index: DIT, *, insert: bool = True) -> None:
        super().__init__(source)
        self.schema = schema
        self.index = index
        self.insert = insert
        self._tables = {t.name: i for i, t in enumerate(schema.tables)}

    def _next(self) -> IndexedRows:
        return self._indexed(self._pull())

    def _reset(self, state: State | None) -> None:
        self._undo()
        self._reset_source(state)

    def _close(self) -> None:
        self._undo()

    def delivered(self, item: object) -> None:
        """Make the new rows of a delivered batch permanent."""
        ticket = getattr(item, "ticket", None)
        if self.insert and ticket is not None:
            self.index.commit(ticket)
        super().delivered(item)

    def _undo(self) -> None:
        if self.insert and not self.index.closed:
            self.index.undo_after(None)

    def _indexed(self, block: RowBlock) -> IndexedRows:
        dense = dense_matrix(block, self.schema.dense)  # may refuse the rows: before the index learns of them
        labels = label_matrix(block, self.schema)
        ragged = [[self._column(block, f) for f in g.features] for g in self.schema.groups]
        columns = [r.column for group in ragged for r in group]
        found = self.index.index(columns) if self.insert else self.index.lookup(columns)
        return IndexedRows(
            schema=self.schema,
            dense=dense,
            labels=labels,
            groups=found.groups,
            lengths=tuple(_lengths(group, block.num_rows) for group in ragged),
            source=block.source,
            ticket=found.ticket,
        )

    def _column(self, block: RowBlock, feature: int) -> Ragged:
        column = self.schema.sparse[feature]
        return id_column(block, column, self._tables[column.table])


def _lengths(columns: Sequence[Ragged], rows: int) -> I32 | None:
    """Feature-major lengths of a group's columns; None when all are one-hot."""
    if all(c.lengths is None for c in columns):
        return None
    return np.concatenate([np.ones(rows, np.int32) if c.lengths is None else c.lengths for c in columns])


__all__ = ["IdColumn", "Index", "IndexedGroup", "index_tables"]
