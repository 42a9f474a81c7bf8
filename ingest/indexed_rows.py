"""A batch between the index and the trainer, held compactly: 32-bit query ids, no offsets for one-hot features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.formats.rows import Source
from headrace.formats.schema import Schema
from headrace.indexer.indexed import IndexedGroup
from headrace.ingest._transpose import fill_one_hot, transpose_impl
from headrace.ingest.array_pool import ArrayPool
from headrace.ingest.batch import Batch, BatchGroup
from headrace.ingest.step_plan import FetchKeys, StepPlan

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IndexedRows:
    """B indexed rows. `lengths[g]` is int32 [F_g·B], feature-major, or None when every bag has one id; `index_serial`
    is the number of the index that found them, `looked_up` when it did (:mod:`headrace.indexer.lookup_order`)."""

    schema: Schema
    dense: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float32] | None
    groups: tuple[IndexedGroup, ...]
    lengths: tuple[I32 | None, ...]
    source: Source
    ticket: int | None
    index_serial: int | None = None
    looked_up: int | None = None

    @property
    def num_rows(self) -> int:
        return len(self.dense)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays: list[npt.NDArray[Any] | None] = [self.dense, self.labels, *self.lengths]
        for g in self.groups:
            arrays += [g.query_ids, g.unique_ids, g.missing, g.locations, g.is_new]
        return sum(a.nbytes for a in arrays if a is not None)

    @cached_property
    def unique_tables(self) -> tuple[npt.NDArray[np.uint32], ...]:
        """For each group uint32 [U]: table uid of each unique row."""
        uids = np.array([t.uid for t in self.schema.tables], np.uint32)
        return tuple(np.repeat(uids[list(g.tables)], np.diff(g.table_offsets)) for g in self.groups)

    def unique_keys(self) -> list[FetchKeys]:
        """For each group the keys of its unique rows."""
        return [
            FetchKeys(ids=g.unique_ids, tables=tables, missing=g.missing)
            for g, tables in zip(self.groups, self.unique_tables, strict=True)
        ]

    def keys_of(self, group: int, unique: I64) -> FetchKeys:
        """Keys of the unique rows at positions `unique` of a group."""
        indexed = self.groups[group]
        return FetchKeys(
            ids=indexed.unique_ids[unique],
            tables=self.unique_tables[group][unique],
            missing=indexed.missing[unique],
        )

    def to_batch(self, plan: StepPlan | None, following: object = None, pool: ArrayPool | None = None) -> Batch:
        """The batch as the trainer receives it: final dtypes, offsets, transpose, slots of the plan.

        `following` is the next batch, where it is known; one process needs nothing of it. `pool` gives the memory.
        """
        pool = ArrayPool(max_blocks=0) if pool is None else pool
        groups = tuple(self._group(g, plan, pool) for g in range(len(self.groups)))
        return Batch(
            dense=torch.from_numpy(self.dense),
            labels=None if self.labels is None else torch.from_numpy(self.labels),
            groups=groups,
            valid=None,
            plan=plan,
            source=self.source,
            schema=self.schema,
            ticket=self.ticket,
            index_serial=self.index_serial,
            looked_up=self.looked_up,
        )

    def _group(self, ordinal: int, plan: StepPlan | None, pool: ArrayPool) -> BatchGroup:
        indexed = self.groups[ordinal]
        features = self.schema.groups[ordinal].features
        nnz, bags = len(indexed.query_ids), len(features) * self.num_rows
        query_ids, positions, position_offsets, offsets, ones = pool.take_arrays(
            [(np.int64, nnz), (np.int64, nnz), (np.int64, indexed.num_unique + 1), (np.int64, bags + 1),
             (np.int32, bags if self.lengths[ordinal] is None else 0)]
        )  # fmt: skip
        lengths = self.lengths[ordinal]
        if lengths is None:
            lengths = ones
            fill_one_hot(lengths, offsets)
        else:
            offsets[0] = 0
            np.cumsum(lengths, out=offsets[1:])
        compact = np.ascontiguousarray(indexed.query_ids, np.uint32)
        transpose_impl(compact, indexed.num_unique, query_ids, positions, position_offsets)
        slots = np.full(indexed.num_unique, -1, np.int64) if plan is None else plan.groups[ordinal].slots
        return BatchGroup(
            features=features,
            query_ids=torch.from_numpy(query_ids),
            lengths=torch.from_numpy(lengths),
            offsets=torch.from_numpy(offsets),
            weights=None,
            unique_ids=torch.from_numpy(indexed.unique_ids),
            unique_tables=torch.from_numpy(self.unique_tables[ordinal]),
            missing=torch.from_numpy(indexed.missing),
            locations=torch.from_numpy(indexed.locations),
            positions=torch.from_numpy(positions),
            position_offsets=torch.from_numpy(position_offsets),
            slots=torch.from_numpy(slots),
        )
