"""A dataset's batches as what the index makes of them, for commands that look at rows and need no plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from headrace.formats.reader import RowReader
from headrace.indexer.indexed import U32, U64
from headrace.ingest.data_loader import DataLoader

CAPACITY_ROWS = 1 << 26
"""More than the unique rows of any batch: nothing is refused."""


def indexed_batches(
    reader: RowReader[Any, Any], *, batch_size: int, num_workers: int, num_batches: int | None = None
) -> Iterator[list[tuple[U64, U32]]]:
    """For each batch (of all, or of the first `num_batches`), a row layout: unique locations of a fresh index, uint64
    [U], and query ids, uint32 [nnz]."""
    with DataLoader(
        reader,
        schema=reader.schema,
        batch_size=batch_size,
        num_workers=num_workers,
        window=0,
        hot_rows=0,
        capacity=CAPACITY_ROWS,
    ) as loader:
        for batch in islice(loader, num_batches):
            yield [(g.locations.numpy().view(np.uint64), g.query_ids.numpy().astype(np.uint32)) for g in batch.groups]
