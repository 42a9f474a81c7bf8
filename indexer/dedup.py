"""Deduplication of a batch apart from any index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from headrace.indexer._dit import NativeDedup
from headrace.indexer.checks import check_integer
from headrace.indexer.columns import MAX_THREADS, check_tables, count_groups
from headrace.indexer.hashing import private_multiplier
from headrace.indexer.indexed import IdColumn, IndexedGroup, IndexedIds, IndexTable
from headrace.indexer.packed_columns import PackedColumns, checked


class Deduplicator:
    """Unique rows and query ids of batches, as `DIT.index` gives them, with locations ABSENT and nothing new.

    Keeps its scratch between batches. `num_threads` counts the calling thread. Any thread may call; after `close`, and
    in a forked child, RuntimeError. `multiplier` as for :class:`~headrace.indexer.dit.DIT`.
    """

    def __init__(self, tables: Sequence[IndexTable], *, num_threads: int = 1, multiplier: int | None = None) -> None:
        self._tables = check_tables(tables)
        self._pid = os.getpid()
        threads = check_integer("num_threads", num_threads, 1, MAX_THREADS)
        self._core = NativeDedup(self._tables, count_groups(self._tables), threads, private_multiplier(multiplier))

    def deduplicate(self, columns: Sequence[IdColumn] | PackedColumns) -> IndexedIds:
        """TypeError, ValueError: see :func:`~headrace.indexer.columns.check_columns`."""
        if os.getpid() != self._pid:
            raise RuntimeError("this deduplicator was made in the parent process; make one in the child")
        groups = self._core.deduplicate(checked(columns, self._tables))
        return IndexedIds(tuple(IndexedGroup(*arrays) for arrays in groups), None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a deduplicator cannot be pickled or copied, since it has threads: make one in each process")

    def close(self) -> None:
        """Wait for the calls in flight and join the threads. Again: nothing."""
        if os.getpid() == self._pid:
            self._core.close()


def deduplicate(columns: Sequence[IdColumn], tables: Sequence[IndexTable]) -> IndexedIds:
    """One batch deduplicated in the calling thread; for a stream keep a :class:`Deduplicator`."""
    return Deduplicator(tables).deduplicate(columns)
