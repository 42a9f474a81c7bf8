"""Index: rows in, rows with query ids and locations out; dedup and lookup in one native pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import U64, IdColumn, IndexedIds, IndexTable
from headrace.ingest.columns import Ragged
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import State
from headrace.ingest.indexed_rows import I32, IndexedRows
from headrace.ingest.row_arrays import RowConverter


def index_tables(schema: Schema) -> tuple[IndexTable, ...]:
    """The schema's tables as the index sees them, in schema order."""
    group_of = {t: g.ordinal for g in schema.groups for t in g.tables}
    return tuple(IndexTable(uid=t.uid, group=group_of[i]) for i, t in enumerate(schema.tables))


class Index(Node[IndexedRows]):
    """Look the ids of each row block up in the index; with ``insert=True`` unseen ids get a row.

    New rows are provisional until their batch is delivered to the trainer: `reset` and `close` undo the rest. One node
    at a time may insert into an index; RuntimeError when another one has read ahead into it. With ``insert=False``
    (evaluation) nothing is inserted and ids without a committed row have the location ABSENT.
    """

    def __init__(self, source: Iterable[RowBlock], schema: Schema, index: DIT, *, insert: bool = True) -> None:
        super().__init__(source)
        check_index_tables(schema, index)
        self.schema = schema
        self.index = index
        self.insert = insert
        self._converter = RowConverter(schema)

    def _next(self) -> IndexedRows:
        block: RowBlock = self._pull()
        if self.insert and not self.index.writer_is(self):
            raise RuntimeError("another loader has begun to read into this index; one at a time can train on it")
        return self._indexed(block)

    def _reset(self, state: State | None) -> None:
        self._undo()
        if self.insert:
            self.index.claim_writer(self)
            self.index.undo_after(None)  # what a loader read ahead that was dropped without close()
        self._reset_source(state)

    def _close(self) -> None:
        self._undo()

    def delivered(self, item: object) -> None:
        """Make the new rows of a delivered batch permanent, and count its rows as used once more."""
        ticket = getattr(item, "ticket", None)
        if self.insert and ticket is not None:
            self.index.commit_used(ticket, [_on_host(group.locations) for group in getattr(item, "groups", ())])
        super().delivered(item)

    def _undo(self) -> None:
        if self.insert and not self.index.closed and self.index.writer_is(self):
            self.index.undo_after(None)
            self.index.release_writer(self)

    def _indexed(self, block: RowBlock) -> IndexedRows:
        return indexed_rows(block, self.schema, self._converter, self.index.index if self.insert else self.index.lookup)


def indexed_rows(
    block: RowBlock, schema: Schema, converter: RowConverter, find: Callable[[Sequence[IdColumn]], IndexedIds]
) -> IndexedRows:
    """A block with its ids found by `find`; what is wrong with its rows is raised before `find` learns of them."""
    arrays = converter.convert(block)
    ragged = [[arrays.ids[f] for f in g.features] for g in schema.groups]
    found = find([r.column for group in ragged for r in group])
    return IndexedRows(
        schema=schema,
        dense=arrays.dense,
        labels=arrays.labels,
        groups=found.groups,
        lengths=tuple(_lengths(group, block.num_rows) for group in ragged),
        source=block.source,
        ticket=found.ticket,
    )


def _on_host(locations: U64 | torch.Tensor) -> U64:
    return locations.cpu().numpy() if isinstance(locations, torch.Tensor) else locations


def _lengths(columns: Sequence[Ragged], rows: int) -> I32 | None:
    """Feature-major lengths of a group's columns; None when all are one-hot."""
    if all(c.lengths is None for c in columns):
        return None
    return np.concatenate([np.ones(rows, np.int32) if c.lengths is None else c.lengths for c in columns])


def check_index_tables(schema: Schema, index: DIT) -> None:
    """ValueError unless the index was made for the schema's tables: ids are looked up by the ordinal of the table."""
    expected = index_tables(schema)
    if index.tables == expected:
        return
    for table, wanted, found in zip(schema.tables, expected, index.tables, strict=False):
        if wanted != found:
            raise ValueError(
                f"the index was made for other tables than the schema's: table {table.name!r} is {wanted}, "
                f"the index has {found} in its place; use the schema that the index was made with"
            )
    raise ValueError(f"the index was made for {len(index.tables)} tables, the schema has {len(expected)}")
