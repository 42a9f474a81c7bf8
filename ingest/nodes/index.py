"""Index: rows in, rows with query ids and locations out; dedup and lookup in one native pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from headrace.formats.checks import check_flag, check_type
from headrace.formats.rows import RowBlock, Source
from headrace.formats.schema import Schema, check_schema
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import U64, IdColumn, IndexedIds, IndexTable
from headrace.indexer.lookup_order import next_in_order
from headrace.ingest.columns import Ragged
from headrace.ingest.engine.buffered import BufferedMap
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.state import State
from headrace.ingest.engine.stats import NodeStats
from headrace.ingest.indexed_rows import I32, IndexedRows
from headrace.ingest.row_arrays import RowArrays, RowConverter


def index_tables(schema: Schema) -> tuple[IndexTable, ...]:
    """The schema's tables as the index sees them, in schema order."""
    check_schema(schema)
    group_of = {t: g.ordinal for g in schema.groups for t in g.tables}
    return tuple(IndexTable(uid=t.uid, group=group_of[i]) for i, t in enumerate(schema.tables))


@dataclass(frozen=True)
class ConvertedRows:
    """The arrays of a block of rows, and where these came from."""

    arrays: RowArrays
    source: Source


class Index(BufferedMap[IndexedRows]):
    """Look the ids of each row block up in the index; with ``insert=True`` unseen ids get a row.

    New rows are provisional until their batch is delivered to the trainer: `reset` and `close` undo the rest. One node
    at a time may insert into an index; RuntimeError when another one has read ahead into it. With ``insert=False``
    (evaluation) nothing is inserted and ids without a committed row have the location ABSENT.

    `num_workers` threads make arrays of the blocks to come, at most two blocks each ahead (0: inline); the lookup stays
    with who calls `next`, in order.
    """

    def __init__(
        self, source: Iterable[RowBlock], schema: Schema, index: DIT, *, insert: bool = True, num_workers: int = 0
    ) -> None:
        check_index_tables(schema, index)
        check_flag("insert", insert)
        workers = check_int("Index", "num_workers", num_workers, minimum=0)
        super().__init__(source, _Conversion(schema), num_workers=workers, capacity=2 * workers)
        self.schema = schema
        self.index = index
        self.insert = insert
        self._index_s = 0.0

    def _next(self) -> IndexedRows:
        converted: ConvertedRows = super()._next()  # type: ignore[assignment]
        if self.insert and not self.index.writer_is(self):
            raise RuntimeError("another loader has begun to read into this index; one at a time can train on it")
        started = time.perf_counter()
        find = self.index.index if self.insert else self.index.lookup
        rows = found_rows(converted, self.schema, find, index_serial=self.index.serial)
        self._index_s += time.perf_counter() - started
        return rows

    def _reset(self, state: State | None) -> None:
        self._undo()
        if self.insert:
            self.index.claim_writer(self)
            self.index.undo_after(None)  # what a loader read ahead that was dropped without close()
        self._index_s = 0.0
        super()._reset(state)

    def _close(self) -> None:
        super()._close()
        self._undo()

    def stats(self) -> NodeStats:
        """As for every node; busy is conversion and lookup, waiting in is the source's."""
        stats = super().stats()
        return replace(stats, busy_s=stats.busy_s + self._index_s)

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


class _Conversion:
    """Blocks of rows to arrays; errors are raised before the index learns of the rows."""

    def __init__(self, schema: Schema) -> None:
        self._converter = RowConverter(schema)

    def __call__(self, block: RowBlock) -> ConvertedRows:
        return ConvertedRows(self._converter.convert(block), block.source)


def indexed_rows(
    block: RowBlock, schema: Schema, converter: RowConverter, find: Callable[[Sequence[IdColumn]], IndexedIds]
) -> IndexedRows:
    """A block with its ids found by `find`; what is wrong with its rows is raised before `find` learns of them."""
    return found_rows(ConvertedRows(converter.convert(block), block.source), schema, find)


def found_rows(
    rows: ConvertedRows,
    schema: Schema,
    find: Callable[[Sequence[IdColumn]], IndexedIds],
    *,
    index_serial: int | None = None,
) -> IndexedRows:
    """Rows with their ids found by `find`, a method of the index of this serial."""
    arrays, looked_up = rows.arrays, next_in_order()
    ragged = [[arrays.ids[f] for f in g.features] for g in schema.groups]
    found = find([r.column for group in ragged for r in group])
    return IndexedRows(
        schema=schema,
        dense=arrays.dense,
        labels=arrays.labels,
        groups=found.groups,
        lengths=tuple(_lengths(group, len(arrays.dense)) for group in ragged),
        source=rows.source,
        ticket=found.ticket,
        index_serial=index_serial,
        looked_up=looked_up,
    )


def _on_host(locations: U64 | torch.Tensor) -> U64:
    if not isinstance(locations, torch.Tensor):
        return locations
    host: U64 = (locations if locations.device.type == "cpu" else locations.cpu()).numpy()
    return host


def _lengths(columns: Sequence[Ragged], rows: int) -> I32 | None:
    """Feature-major lengths of a group's columns; None when all are one-hot."""
    if all(c.lengths is None for c in columns):
        return None
    return np.concatenate([np.ones(rows, np.int32) if c.lengths is None else c.lengths for c in columns])


def check_index_tables(schema: Schema, index: DIT) -> None:
    """ValueError unless the index was made for the schema's tables: ids are looked up by the ordinal of the table."""
    expected = index_tables(schema)
    check_type("index", index, DIT, "a headrace.DIT, as loader.index or DIT(index_tables(schema))")
    if index.tables == expected:
        return
    for table, wanted, found in zip(schema.tables, expected, index.tables, strict=False):
        if wanted != found:
            raise ValueError(
                f"the index was made for other tables than the schema's: table {table.name!r} is {wanted}, "
                f"the index has {found} in its place; use the schema that the index was made with"
            )
    raise ValueError(f"the index was made for {len(index.tables)} tables, the schema has {len(expected)}")
