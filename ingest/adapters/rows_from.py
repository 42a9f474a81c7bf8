"""RowsFrom: whatever another pipeline gives, rows or record batches, as row blocks of a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from headrace.formats.checks import check_text
from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Schema, check_schema
from headrace.ingest.adapters.schema_columns import Columns, batch_columns, row_columns
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.errors import twin_of
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import Snapshot, State, count_in

OnBadRecord = Literal["raise", "skip"]


Row = Mapping[str, Any]
Payload = Row | list[Row] | list[pa.RecordBatch] | RowBlock


class Item(NamedTuple):
    """What a pipeline gave: rows in one of their forms; `file` is its origin, `label` names it in errors."""

    file: str
    payload: Payload
    label: str = ""


class RowsFrom(Node[RowBlock]):
    """Items of `source` (an iterable, or a node of ours or of torchdata) as row blocks of `schema`.

    An item is a mapping from column to value, which is one row; a ``pyarrow.RecordBatch`` or ``Table``; or a
    :class:`RowBlock`, which passes as it is. Rows are collected into blocks of at most `block_rows`, each of one file.
    Columns are found by name, others are not read, and values are cast as those of files are
    (`formats/arrow_columns.py`): a value that does not fit is a bad record, which raises BadRecordError or is left out
    and counted.

    A row's place is (`origin`, its number in the stream, from 0 on in each pass). The state is the source's behind the
    last delivered row. Rows before an error of the source are delivered before it.
    """

    def __init__(
        self,
        source: Iterable[Any],
        schema: Schema,
        *,
        block_rows: int = 1024,
        bad_records: OnBadRecord = "raise",
        origin: str = "stream",
        unpack: Callable[[Any], Item] | None = None,
    ) -> None:
        _refuse_one_item(source, self.name)
        super().__init__(source)
        check_schema(schema)
        check_text("origin", origin)
        if unpack is not None and not callable(unpack):
            raise TypeError(f"unpack is a function item -> Item, not a {type(unpack).__name__}")
        if not isinstance(bad_records, str) or bad_records not in get_args(OnBadRecord):
            raise ValueError(f"{self.name}: bad_records={bad_records!r} is neither 'raise' nor 'skip'")
        self.schema = schema
        self.block_rows = check_int(self.name, "block_rows", block_rows, minimum=1)
        self.bad_records = bad_records
        self.origin = origin
        self._unpack = unpack or self._plain_item
        self._held: tuple[Any, Snapshot] | None = None  # pulled, of the next block
        self._failure: BaseException | None = None  # instead of it
        self._used = Snapshot()  # the source's state behind the last row taken
        self._rows = 0

    def _next(self) -> RowBlock:
        while True:
            item = self._take()
            if isinstance(item.payload, RowBlock):
                block = item.payload
                self._rows += block.num_rows
            elif isinstance(item.payload, Mapping):
                rows = [item.payload, *self._more_rows(item.file)]
                block = self._settle(item, [row_columns(self.schema, item.file, rows, self._rows)])
            elif all(isinstance(one, pa.RecordBatch) for one in item.payload):
                block = self._settle(item, [batch_columns(self.schema, item.file, one) for one in item.payload])
            else:
                block = self._settle(item, [row_columns(self.schema, item.file, item.payload, self._rows)])
            if block.num_rows:
                return block

    def _take(self) -> Item:
        if self._failure is not None:
            raise self._failure
        raw, after = self._held or self._pull_with_state()
        self._held = None
        item = self._unpack(raw)
        self._used = after
        return item

    def _more_rows(self, file: str) -> list[Row]:
        """Rows of the same file that follow, as many as fit into the block."""
        rows: list[Row] = []
        while len(rows) + 1 < self.block_rows:
            try:
                self._held = self._pull_with_state()
                item = self._unpack(self._held[0])
            except StopIteration:
                break  # it comes again with the next block
            except Exception as error:
                if self._held is None:  # else the item is tried again
                    self._failure = twin_of(error)
                break
            if item.file != file or not isinstance(item.payload, Mapping):
                break
            rows.append(item.payload)
            self._used = self._held[1]
            self._held = None
        return rows

    def _pull_with_state(self) -> tuple[Any, Snapshot]:
        item = self._pull()
        return item, self._source_state()

    def _settle(self, item: Item, parts: list[Columns]) -> RowBlock:
        """The good rows of an item, numbered on from the last one."""
        blocks = []
        for columns in parts:
            bad = columns.bad_rows()
            if len(bad) and self.bad_records == "raise":
                raise columns.error(item.file, int(bad[0]), self._rows, item.label)
            self._skip(len(bad))
            rows = columns.num_rows
            source = Source((item.file,), (SourceRange(0, self._rows, rows),) if rows else ())
            self._rows += rows
            block = RowBlock(columns.data, source)
            blocks.append(block.take(np.delete(np.arange(rows), bad)) if len(bad) else block)
        return RowBlock.concat(blocks) if blocks else RowBlock(self._empty(), Source((item.file,), ()))

    def _empty(self) -> pa.RecordBatch:
        schema = self.schema.arrow_schema(labels=bool(self.schema.labels))
        return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)

    def _plain_item(self, item: Any) -> Item:
        return Item(self.origin, payload_of(item, self.name))

    def _reset(self, state: State | None) -> None:
        rows = 0 if state is None else count_in(self.name, state, "rows")
        self._reset_source(state)
        self._held = self._failure = None
        self._used = self._source_state()
        self._rows = rows

    def _state(self) -> State:
        return {"source": self._used, "rows": self._rows}

    def _close(self) -> None:
        self._held = self._failure = None

    def _position(self) -> str:
        return f"after row {self._rows} of {self.origin}"


def _refuse_one_item(source: object, name: str) -> None:
    """TypeError for what would be iterated over by columns, where its rows are meant."""
    if isinstance(source, (pa.RecordBatch, pa.Table, RowBlock, Mapping)):
        raise TypeError(f"{name}: source is an iterable of items, and a {type(source).__name__} is one item: give [it]")
    if (remedy := _REMEDIES.get(_kind(source))) is not None and hasattr(source, "columns"):
        raise TypeError(
            f"{name}: source is an iterable of items, got a {type(source).__name__}: {remedy}, and [table] is a source"
        )


def payload_of(item: Any, name: str) -> Payload:
    """The rows that an item is; TypeError for anything else."""
    if isinstance(item, pa.RecordBatch):
        return [item]
    if isinstance(item, pa.Table):
        return list(item.to_batches())
    if isinstance(item, (RowBlock, Mapping)):
        return item
    remedy = _REMEDIES.get(_kind(item), "map the pipeline's items to one of these")
    raise TypeError(
        f"{name}: an item is a row (a mapping from column to value), a pyarrow RecordBatch or Table, or a RowBlock; "
        f"got {type(item).__name__}: {remedy}"
    )


_REMEDIES = {
    "pandas": "pyarrow.Table.from_pandas(frame, preserve_index=False) makes a Table of a frame",
    "polars": "frame.to_arrow() makes a Table of a frame",
    "numpy": "a row has a value for each column, by its name",
}


def _kind(item: object) -> str:
    """The package that the item's type is of."""
    return type(item).__module__.partition(".")[0]
