"""Rows out of blocks of any size, with a state that is exact to the row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.formats.rows import RowBlock
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import Snapshot, State, count_in


class RowConsumer(Node[RowBlock]):
    """Common ground of nodes that take rows, not blocks, from their source (blocks may have any size, 0 included).

    The place in the source is (its state before the block that is partly used, rows used since then): no rows are
    kept, a resume reads that block again. Block sizes may differ in the second reading; only the order of rows counts.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        super().__init__(source)
        self._rest: RowBlock | None = None
        self._before = Snapshot()
        self._used = 0
        self._to_skip = 0

    def _reset_rows(self, state: State | None) -> None:
        """Reset the source and go to the row of `state`, or to the beginning."""
        self._reset_source(state)
        self._rest = None
        self._before = self._source_state()
        self._used = self._to_skip = 0 if state is None else count_in(self.name, state, "used_rows")

    def _rows_state(self) -> State:
        """Entries of the node's state: the place after the last row taken."""
        return {"source": self._before, "used_rows": self._used}

    def _take_rows(self, rows: int) -> list[RowBlock]:
        """The next `rows` rows as slices of the blocks that hold them; fewer at the end of the source."""
        taken: list[RowBlock] = []
        while rows > 0 and (block := self._rest or self._next_block()) is not None:
            count = min(rows, block.num_rows)
            taken.append(block if count == block.num_rows else block.slice(0, count))
            self._use(block, count)
            rows -= count
        return taken

    def _next_block(self) -> RowBlock | None:
        """The next block with rows that are not to be skipped; None at the end."""
        while True:
            try:
                block = checked_block(self.name, self._pull())
            except StopIteration:
                if self._to_skip:
                    raise ValueError(
                        f"{self.name}: the source ended {self._to_skip} rows before the place of the state; "
                        "are these the same files?"
                    ) from None
                return None
            skipped = min(self._to_skip, block.num_rows)
            self._to_skip -= skipped
            if skipped < block.num_rows:
                return block.slice(skipped, block.num_rows - skipped) if skipped else block

    def _use(self, block: RowBlock, count: int) -> None:
        if count == block.num_rows:
            self._finish_block()
        else:
            self._rest = block.slice(count, block.num_rows - count)
            self._used += count

    def _finish_block(self) -> None:
        self._rest = None
        self._used = 0
        self._before = self._source_state()

    def _close(self) -> None:
        self._rest = None


def checked_block(name: str, item: object) -> RowBlock:
    """`item`, if it is a row block; else TypeError."""
    if not isinstance(item, RowBlock):
        raise TypeError(f"{name}: expected a RowBlock, got {type(item).__name__}")
    return item
