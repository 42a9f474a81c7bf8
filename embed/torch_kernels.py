"""The stage's work by torch's operators: on a GPU, or on the CPU by the same lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from headrace.embed.arena_rows import ArenaRows
from headrace.embed.arrays import I64
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.copy_lane import CopyLane
from headrace.embed.layout import GroupLayout
from headrace.embed.pooling import Bags, bags_of
from headrace.embed.sources import TensorSource, VectorSource
from headrace.embed.step_times import StepTimes
from headrace.embed.torch_pool import DeviceBags, TorchPool, TorchSequences
from headrace.embed.torch_rows import TorchRows
from headrace.embed.torch_segments import segment_sums
from headrace.ingest.batch import BatchGroup


class TorchKernels:
    """:class:`~headrace.embed.kernels.Kernels` on `device`, whose rows move over `lane`."""

    def __init__(self, device: torch.device, lane: CopyLane, times: StepTimes) -> None:
        self._device = device
        self._lane = lane
        self._times = times

    @property
    def device(self) -> torch.device:
        return self._device

    def bags(self, group: BatchGroup, layout: GroupLayout, num_rows: int) -> Bags:
        """Checked on the host: a batch that is on the device already is copied back, which waits for the device."""
        return DeviceBags.of(bags_of(on_host(group), layout, num_rows), group, self._device)

    def make_rows(self, capacity: int, store: ChunkStore) -> ArenaRows:
        return TorchRows(capacity, store.dim, store.width, self._device, self._lane)

    def pool(
        self, bags: Sequence[Bags], sources: Sequence[VectorSource], leaves: Sequence[Tensor], shape: tuple[int, int]
    ) -> Tensor:
        if not leaves:
            return torch.empty(shape, dtype=torch.float32, device=self._device)
        found = tuple(self._on_device(source) for source in sources)
        result: Tensor = TorchPool.apply(tuple(bags), found, shape, self._times, *leaves)  # type: ignore[no-untyped-call]
        return result

    def sequence_values(self, bags: Bags, source: VectorSource, leaf: Tensor) -> Tensor:
        found = self._on_device(source)
        result: Tensor = TorchSequences.apply(cast(DeviceBags, bags), found, self._times, leaf)  # type: ignore[no-untyped-call]
        return result

    def sum_rows(self, grads: Tensor, order: I64, offsets: I64) -> Tensor:
        terms = grads.index_select(0, self._lane.upload(order))
        return segment_sums(terms, self._lane.upload(offsets), np.diff(offsets))

    def _on_device(self, source: VectorSource) -> TensorSource:
        """`source`, or a copy of the rows that it finds in host memory."""
        if isinstance(source, TensorSource):
            return source
        rows = self._lane.host_rows(source.count, source.dim)
        source.read(rows.numpy())
        there = rows.to(self._device, non_blocking=True)
        return TensorSource(there, torch.arange(source.count, device=self._device))


def on_host(group: BatchGroup) -> BatchGroup:
    """The group with its tensors on the host."""
    tensors: dict[str, Any] = {name: value.cpu() for name, value in vars(group).items() if isinstance(value, Tensor)}
    return replace(group, **tensors)
