"""A trace: the unique rows of consecutive batches, by row number, ready to be dealt to any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from headrace.formats.checks import check_integer
from headrace.indexer.dit import DIT
from headrace.indexer.hashing import ROUTE_BITS, ROUTE_BUCKETS
from headrace.indexer.indexed import I64, U32, IdColumn, IndexTable

U16 = npt.NDArray[np.uint16]

_PLACES = np.uint64((1 << 46) - 1)  # chunk and offset of a location
_MAX_ROWS = (1 << 32) - 1
_BUCKETS_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class Trace:
    """Batches in stream order: rank w of N has batch t · N + w at step t.

    rows: for each batch uint32 [U], the numbers of its unique rows, each once, in batch order
    buckets: uint16 [num_rows], the route bucket of each row number; of numbers that no row has, 0
    accesses: int64 [batches, features], ids of each batch
    feature_tables: the table of each feature
    """

    batch_size: int
    rows: tuple[U32, ...]
    buckets: U16
    accesses: I64
    feature_tables: tuple[int, ...]

    @property
    def num_batches(self) -> int:
        return len(self.rows)

    @property
    def num_rows(self) -> int:
        """Row numbers are below it."""
        return len(self.buckets)

    def owners(self, ranks: int) -> U16:
        """Owner of each row number: the 65,536 buckets, in runs of equal length, over the ranks."""
        owner_of_bucket = (np.arange(ROUTE_BUCKETS, dtype=np.int64) * ranks) >> ROUTE_BITS
        return owner_of_bucket.astype(np.uint16)[self.buckets]


def record(
    batches: Iterable[Sequence[IdColumn]],
    tables: Sequence[IndexTable],
    *,
    batch_size: int,
    num_batches: int,
    num_threads: int = 1,
) -> Trace:
    """Index the first `num_batches` batches (or all there are) with a fresh index and keep their unique rows.

    Every table must be of one row layout (group 0). The index is gone when this returns: what stays is 4 bytes a unique
    row and batch, and 2 a distinct row. ValueError without any batch.
    """
    check_integer("num_batches", num_batches, 1, 1 << 40)
    rows: list[U32] = []
    accesses: list[list[int]] = []
    feature_tables: tuple[int, ...] = ()
    with DIT(tables, num_threads=num_threads) as index:
        for columns in islice(batches, num_batches):
            indexed = index.index(columns)
            if indexed.ticket is not None:
                index.commit(indexed.ticket)
            (group,) = indexed.groups
            places = group.locations & _PLACES
            if len(places) and int(places.max()) > _MAX_ROWS:
                raise ValueError("a trace holds at most 2^32 rows: take fewer steps or ranks")
            rows.append(places.astype(np.uint32))
            accesses.append([len(column.values) for column in columns])
            feature_tables = tuple(column.table for column in columns)
        if not rows:
            raise ValueError("there is not one whole batch in the data")
        buckets = _buckets(index, 1 + max((int(r.max()) for r in rows if len(r)), default=-1))
    return Trace(batch_size, tuple(rows), buckets, np.array(accesses, np.int64), feature_tables)


def _buckets(index: DIT, num_rows: int) -> U16:
    buckets = np.zeros(num_rows, np.uint16)
    for first in range(0, ROUTE_BUCKETS, _BUCKETS_AT_ONCE):
        part = index.rows_of_buckets(first, first + _BUCKETS_AT_ONCE)
        buckets[part.locations & _PLACES] = part.buckets
    return buckets
