"""Blocks of any size to batches of one size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.formats.rows import RowBlock
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.state import State
from headrace.ingest.nodes.row_consumer import RowConsumer


class BatchRows(RowConsumer):
    """Row blocks of exactly `batch_size` rows, in the source's order, whatever the sizes of the source's blocks.

    The last batch is as short as the rows left; with `drop_last` it is left out, and its rows are counted in
    ``stats().skipped``. When the source fails in the middle of a batch, the error is raised and the rows already taken
    are not lost: the state stays before the first of them, so that ``reset(state)`` then gives the whole batch.
    """

    def __init__(self, source: Iterable[Any], batch_size: int, *, drop_last: bool = False) -> None:
        super().__init__(source)
        self.batch_size = check_int("BatchRows", "batch_size", batch_size, minimum=1)
        self.drop_last = drop_last

    def _next(self) -> RowBlock:
        blocks = self._take_rows(self.batch_size)
        rows = sum(b.num_rows for b in blocks)
        if rows < self.batch_size and self.drop_last:
            self._skip(rows)
            raise StopIteration
        if rows == 0:
            raise StopIteration
        return RowBlock.concat(blocks)

    def _reset(self, state: State | None) -> None:
        self._reset_rows(state)

    def _state(self) -> State:
        return self._rows_state()
