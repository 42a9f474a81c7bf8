"""What `bench.py` measures against each other: the index, the least that any index must do, the published design.

A contender is filled when it is made. `prepare` gives what is timed; all that the contender would not do in a loader
(hashing of keys in the baselines' favour, joining of arrays) is done before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.indexer import _bench
from headrace.indexer._dit import mix64
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import U32, U64, IdColumn, IndexedIds, IndexTable

Batch = Sequence[IdColumn]
"""One batch; here the values of a column are always a NumPy array."""

Residents = Sequence[U32 | U64]
"""For each table the ids that it holds before."""

PREFILL_IDS = 1 << 16
"""Ids of one call while a table is filled: as many as a batch has unique rows, so that scratch stays its size."""

NUM_SHARDS = 64


class Contender(Protocol):
    def prepare(self, batches: Sequence[Batch]) -> Callable[[], None]: ...
    def close(self) -> None:
        """Free the memory."""


def prefill(residents: Residents) -> Iterator[IdColumn]:
    """The residents as columns of at most `PREFILL_IDS`."""
    for table, ids in enumerate(residents):
        for start in range(0, len(ids), PREFILL_IDS):
            yield IdColumn(table, ids[start : start + PREFILL_IDS])


class CommittingIndex:
    """An index whose batches are committed at once and counted, from any thread. The one place where a benchmark
    commits."""

    def __init__(self, index: DIT) -> None:
        self.index = index
        self._lock = threading.Lock()
        self._committed = -1

    def __call__(self, batch: Batch) -> IndexedIds:
        indexed = self.index.index(batch)
        if indexed.ticket is None:
            raise RuntimeError("index() gave no ticket")
        with self._lock:
            if indexed.ticket > self._committed:  # else it went with a later one, of another thread
                self.index.commit(indexed.ticket, indexed)
                self._committed = indexed.ticket
        return indexed


class IndexContender:
    """The index with `num_threads`; `filling` says what filling it cost.

    `insert_rows_per_s`, `longest_call_ms`, and bytes a row: the mean and the largest over sizes from 1 M rows on, or
    those of a smaller table when it is full.
    """

    def __init__(self, tables: Sequence[IndexTable], residents: Residents, *, num_threads: int) -> None:
        self.index = DIT(tables, num_shards=NUM_SHARDS, num_threads=num_threads)
        self.indexed = CommittingIndex(self.index)
        self.filling = self._fill(residents)

    def _fill(self, residents: Residents) -> dict[str, float]:
        rows, seconds, bytes_per_row = 0, 0.0, []
        for column in prefill(residents):
            begin = time.perf_counter()
            self.indexed([column])
            seconds += time.perf_counter() - begin
            rows += len(column.values)
            if rows >= 1_000_000:
                bytes_per_row.append(self.index.nbytes / len(self.index))
        if not bytes_per_row:
            bytes_per_row.append(self.index.nbytes / max(len(self.index), 1))
        return {
            "insert_rows_per_s": len(self.index) / seconds if seconds else 0.0,
            "bytes_per_row": float(np.mean(bytes_per_row)),
            "bytes_per_row_max": max(bytes_per_row),
            "longest_call_ms": self.index.stats().longest_call_ms,
        }

    def prepare(self, batches: Sequence[Batch]) -> Callable[[], None]:
        def run() -> None:
            for batch in batches:
                self.indexed(batch)

        return run

    def close(self) -> None:
        self.index.close()


class LimitContender:
    """The least that an index must do: read each id and write each query id once, and for each unique id read one entry
    of 16 bytes, prefetched, at a random place of a table of the same size, by one thread. (An index that meets popular
    ids again finds some of them in the cache.) `unique[b]` are the unique ids of batch b; `stream_s` and `reads_s` are
    the seconds of the two parts, run by run.
    """

    def __init__(self, unique: Sequence[int], capacity: int) -> None:
        self.stream_s: list[float] = []
        self.reads_s: list[float] = []
        rng = np.random.default_rng(0)
        self._places = [rng.integers(0, 1 << 64, count, np.uint64) for count in unique]
        self._reads: _bench.RandomReads | None = _bench.RandomReads(max(capacity, 1))

    def prepare(self, batches: Sequence[Batch]) -> Callable[[], None]:
        reads = self._reads
        if reads is None:
            raise RuntimeError("closed")
        flat = [np.concatenate([numpy_values(c).astype(np.uint32) for c in batch]) for batch in batches]
        out = np.empty(max(map(len, flat)), np.uint32)

        def run() -> None:
            stream_s = reads_s = 0.0
            for ids, places in zip(flat, self._places, strict=True):
                begin = time.perf_counter()
                _bench.stream_pass(ids, out)
                middle = time.perf_counter()
                reads.read(places)
                reads_s += time.perf_counter() - middle
                stream_s += middle - begin
            self.stream_s.append(stream_s)
            self.reads_s.append(reads_s)

        return run

    def close(self) -> None:
        self._reads = None


class FilledMaps:
    """The published design, holding the residents. Its keys are hashed beforehand."""

    def __init__(self, tables: Sequence[IndexTable], residents: Residents) -> None:
        self.tables = tables
        self.maps: _bench.LockedMaps | None = _bench.LockedMaps(NUM_SHARDS)
        for column in prefill(residents):
            self.maps.index_batch(self.hashes(column))

    def hashes(self, column: IdColumn) -> U64:
        return mix64(self.tables[column.table].uid, False, numpy_values(column).astype(np.uint64))

    def close(self) -> None:
        self.maps = None


class LockedMapsContender:
    """`filled` with one lock a shard and batch, or one an id (`each`), by `num_threads`; several may share the maps."""

    def __init__(self, filled: FilledMaps, *, each: bool, num_threads: int) -> None:
        self._filled, self._each, self._num_threads = filled, each, num_threads

    def prepare(self, batches: Sequence[Batch]) -> Callable[[], None]:
        maps, num_threads = self._filled.maps, self._num_threads
        if maps is None:
            raise RuntimeError("closed")
        index = maps.index_each if self._each else maps.index_batch
        keys = [np.concatenate([self._filled.hashes(c) for c in batch]) for batch in batches]

        def run() -> None:
            for batch in keys:
                index(batch, num_threads)

        return run

    def close(self) -> None:
        """The maps are closed by whoever filled them."""


def numpy_values(column: IdColumn) -> npt.NDArray[Any]:
    """The values of a column that is no Arrow array."""
    values = column.values
    if not isinstance(values, np.ndarray):
        raise TypeError("a benchmark takes NumPy columns")
    return values
