"""Users' transforms of rows: crosses, bucketing, clipping, filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from headrace.formats.rows import RowBlock, Source
from headrace.ingest.engine.buffered import BufferedMap
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.errors import add_context
from headrace.ingest.engine.ordered import apply_to
from headrace.ingest.nodes.row_consumer import checked_block
from headrace.ingest.nodes.row_names import describe_rows


class Map(BufferedMap[RowBlock]):
    """``fn(block)`` for each row block of `source`: columns may change at will, rows may be left out or reordered.

    So that any later error can name file and row, the result's source has to be true: with as many rows as came in
    it lists the same rows, with fewer a part of them (``block.take(indices)`` and ``block.slice(offset, rows)`` see to
    it). More rows than came in, or rows of another place, raise ValueError; no RowBlock, TypeError. Rows left out are
    counted in ``stats().skipped``, and a block without rows is not given on.

    `num_workers` threads call `fn` side by side, 0 calls it inline; the order is the source's.
    """

    def __init__(
        self,
        source: Iterable[Any],
        fn: Callable[[RowBlock], RowBlock],
        *,
        num_workers: int = 0,
        prefetch_factor: int = 2,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"Map: fn is a function RowBlock -> RowBlock, not a {type(fn).__name__}")
        workers = check_int("Map", "num_workers", num_workers, minimum=0)
        factor = check_int("Map", "prefetch_factor", prefetch_factor, minimum=1)
        super().__init__(source, _CheckedTransform(fn), num_workers=workers, capacity=workers * factor)

    def _next(self) -> RowBlock:
        while True:
            (block, rows_in), self._delivered = self._take()
            self._skip(rows_in - block.num_rows)
            if block.num_rows:
                result: RowBlock = block
                return result


class _CheckedTransform:
    """`fn` and the checks of its result; apart from the node, since the run must not refer to it."""

    def __init__(self, fn: Callable[[RowBlock], RowBlock]) -> None:
        self._fn = fn

    def __call__(self, item: object) -> tuple[RowBlock, int]:
        """(result, rows that came in)."""
        block = checked_block("Map", item)
        try:
            result = checked_block("Map", apply_to(self._fn, block))
            _check_rows(block.source, result.source)
        except Exception as error:
            add_context(error, f"in node Map, {describe_rows(block.source)}")
            raise
        return result, block.num_rows


def _check_rows(before: Source, after: Source) -> None:
    if after is before:
        return
    if after.num_rows > before.num_rows:
        raise ValueError(
            f"Map: {before.num_rows} rows became {after.num_rows}; a transform may leave out, not add, rows"
        )
    if after.files != before.files:
        raise ValueError("Map: the result lists other files; use block.take() or block.slice(), or keep block.source")
    known, used = _row_keys(before), _row_keys(after)
    if after.num_rows == before.num_rows and np.array_equal(known, used):
        return
    if len(np.unique(used)) != len(used) or not np.isin(used, known).all():
        raise ValueError("Map: the result's source lists rows that did not come in, or one of them twice")


def _row_keys(source: Source) -> Any:
    """[B] one value a row: (file, row) as a pair."""
    file, row = source.arrays()
    keys = np.empty(len(row), dtype=[("file", np.int32), ("row", np.int64)])
    keys["file"], keys["row"] = file, row
    return keys
