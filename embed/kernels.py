"""What the stage computes with: the native kernels on the host, or torch's operators on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from headrace.embed import _pool
from headrace.embed._rows import RowSource
from headrace.embed._threads import Threads
from headrace.embed.arena_rows import ArenaRows, HostRows
from headrace.embed.arrays import F32, I64
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.layout import GroupLayout
from headrace.embed.pooling import Bags, PoolWork, bags_of, pool, sequence_values
from headrace.embed.sources import VectorSource
from headrace.embed.step_times import StepTimes
from headrace.ingest.batch import BatchGroup

KernelsName = Literal["native", "torch"]


class Kernels(Protocol):
    """Gathering, pooling and its backward, and where rows and gradients are for it.

    Outputs and gradients are float32 tensors on `device`; a forward is differentiable (once) in `leaves`, which stand
    for the unique rows of the groups and whose values are not read.
    """

    @property
    def device(self) -> torch.device: ...
    def bags(self, group: BatchGroup, layout: GroupLayout, num_rows: int) -> Bags:
        """The bags of a batch's group, checked; ValueError or IndexError tells what does not fit."""

    def make_rows(self, capacity: int, store: ChunkStore) -> ArenaRows:
        """Memory of an arena for rows of `store`."""

    def pool(
        self, bags: Sequence[Bags], sources: Sequence[VectorSource], leaves: Sequence[Tensor], shape: tuple[int, int]
    ) -> Tensor:
        """float32 `shape` [B, D] from the unique rows that each group's source finds."""

    def sequence_values(self, bags: Bags, source: VectorSource, leaf: Tensor) -> Tensor:
        """float32 [n, dim]: a row for each id of the group's sequence features, feature after feature."""

    def sum_rows(self, grads: Tensor, order: I64, offsets: I64) -> Tensor:
        """float32 [U, dim]: row u is the sum of grads[order[i]] over i from offsets[u] to offsets[u + 1]."""


class NativeKernels:
    """Those of `_pool.pyx` and `_rows.pyx`, on the host."""

    device = torch.device("cpu")

    def __init__(self, threads: Threads, times: StepTimes) -> None:
        self._work = PoolWork(threads, times)

    def bags(self, group: BatchGroup, layout: GroupLayout, num_rows: int) -> Bags:
        # the backward of pooling goes from the bags to the rows
        return bags_of(group, layout, num_rows, self._work.threads, by_row=bool(layout.sequences))

    def make_rows(self, capacity: int, store: ChunkStore) -> ArenaRows:
        return HostRows(capacity, store.dim, store.width, self._work.threads)

    def pool(
        self, bags: Sequence[Bags], sources: Sequence[VectorSource], leaves: Sequence[Tensor], shape: tuple[int, int]
    ) -> Tensor:
        # with rows in host memory, every source is a native one
        return pool(bags, cast("Sequence[RowSource]", sources), leaves, shape, self._work)

    def sequence_values(self, bags: Bags, source: VectorSource, leaf: Tensor) -> Tensor:
        rows: F32 = np.empty((source.count, source.dim), np.float32)
        source.read(rows, self._work.threads)
        return sequence_values(bags, rows, leaf, self._work)

    def sum_rows(self, grads: Tensor, order: I64, offsets: I64) -> Tensor:
        total = torch.empty((len(offsets) - 1, grads.shape[1]), dtype=torch.float32)
        starts = np.arange(len(grads)) * grads.shape[1]
        flat = grads.contiguous().numpy().reshape(-1)
        _pool.segment_sum(flat, starts, None, False, order, offsets, total.numpy(), self._work.threads)
        return total
