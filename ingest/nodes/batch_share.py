"""One rank's share of each global batch, out of rows that all ranks read in the same order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.formats.rows import RowBlock
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.state import State
from headrace.ingest.nodes.row_consumer import RowConsumer


class BatchShare(RowConsumer):
    """Of each ``world_size * batch_size`` rows of the source the `rank`-th `batch_size`.

    So the global batches are those of one process with that batch size, for any number of ranks, files and blocks; the
    last one is shared out evenly, so that ranks may get fewer rows, or none, but all have as many batches. With
    `drop_last` it is left out. The state is a place in the source: it is the same on all ranks, and serves any number
    of them.
    """

    def __init__(
        self, source: Iterable[Any], batch_size: int, *, rank: int, world_size: int, drop_last: bool = False
    ) -> None:
        super().__init__(source)
        self.batch_size = check_int("BatchShare", "batch_size", batch_size, minimum=1)
        self.world_size = check_int("BatchShare", "world_size", world_size, minimum=1)
        self.rank = check_int("BatchShare", "rank", rank, minimum=0)
        if self.rank >= self.world_size:
            raise ValueError(f"BatchShare: rank {rank} of {world_size} ranks")
        self.drop_last = drop_last

    def _next(self) -> RowBlock:
        whole = self.world_size * self.batch_size
        blocks = self._take_rows(whole)
        rows = sum(b.num_rows for b in blocks)
        first, last = rows * self.rank // self.world_size, rows * (self.rank + 1) // self.world_size
        if rows < whole and self.drop_last:
            self._skip(last - first)
            raise StopIteration
        if rows == 0:
            raise StopIteration
        return RowBlock.concat(_rows_between(blocks, first, last))

    def _reset(self, state: State | None) -> None:
        self._reset_rows(state)

    def _state(self) -> State:
        return self._rows_state()


def _rows_between(blocks: list[RowBlock], first: int, last: int) -> list[RowBlock]:
    """Rows [first, last) of the blocks one after the other, as slices; at least one, maybe empty."""
    kept, start = [], 0
    for block in blocks:
        begin, end = max(first, start), min(last, start + block.num_rows)
        if begin < end:
            kept.append(block.slice(begin - start, end - begin))
        start += block.num_rows
    return kept or [blocks[0].slice(0, 0)]
