from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from headrace.formats.rows import RowBlock, Source, SourceRange

MakeBlocks = Callable[[Sequence[int]], list[RowBlock]]


@pytest.fixture
def make_blocks() -> MakeBlocks:
    """Blocks of the given sizes out of one file; column x is the row number in the file."""

    def make(sizes: Sequence[int], files: tuple[str, ...] = ("a.tsv",)) -> list[RowBlock]:
        blocks, first = [], 0
        for size in sizes:
            data = pa.record_batch({"x": pa.array(range(first, first + size), pa.int64())})
            blocks.append(RowBlock(data, Source(files, (SourceRange(0, first, size),))))
            first += size
        return blocks

    return make


@pytest.fixture
def values() -> Callable[[Sequence[RowBlock]], list[list[int]]]:
    """Column x of each block."""
    return lambda blocks: [b.data.column(0).to_pylist() for b in blocks]
