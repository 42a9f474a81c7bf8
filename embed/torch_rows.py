"""Rows of an arena in tensors of a device, moved over a lane of copies beside the trainer's work."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.embed.arena_rows import Staged
from headrace.embed.arrays import F32, I64, U64
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.copy_lane import CopyLane, Mark
from headrace.embed.optimizers import UpdateRule
from headrace.embed.sources import TensorSource, VectorSource
from headrace.embed.torch_update import update_slots
from headrace.ingest.step_plan import FetchKeys


class TorchRows:
    """:class:`~headrace.embed.arena_rows.ArenaRows` on `device`: vectors float32 [capacity, dim] and state float32
    [capacity, width - dim].

    Rows that leave go from their slots to page-locked memory, rows that enter come by it: a movement is two or three
    kernels and one copy each way, whatever the number of rows.
    """

    def __init__(self, capacity: int, dim: int, width: int, device: torch.device, lane: CopyLane) -> None:
        self._device = device
        self._lane = lane
        self._vectors = torch.zeros((capacity, dim), dtype=torch.float32, device=device)
        self._state = torch.zeros((capacity, width - dim), dtype=torch.float32, device=device)
        for tensor in (self._vectors, self._state):
            lane.shares(tensor)

    def mark(self) -> Mark:
        return self._lane.mark()

    def take_out(self, slots: I64, after: Mark) -> Staged:
        staged = self._lane.host_rows(len(slots), self._width)

        def copy() -> None:
            at = self._lane.upload(slots)
            rows = torch.cat([self._vectors.index_select(0, at), self._state.index_select(0, at)], dim=1)
            staged.copy_(rows, non_blocking=True)

        return _OnItsWay(staged, self._lane.issue(copy, after), self._lane)

    def bring_in(self, store: ChunkStore, locations: U64, keys: FetchKeys, slots: I64, after: Mark) -> Mark:
        staged = self._lane.host_rows(len(slots), self._width)
        store.read(locations, keys.ids, keys.tables, keys.missing, staged.numpy())
        return self._lane.issue(lambda: self._put(slots, staged), after)

    def hold(self, mark: Mark) -> None:
        self._lane.hold(mark)

    def settle(self) -> None:
        self._lane.hold(self._lane.last())

    def source(self, slots: I64) -> VectorSource:
        return TensorSource(self._vectors, self._lane.upload(slots))

    def update(self, slots: I64, grads: Tensor, rule: UpdateRule) -> None:
        update_slots(self._vectors, self._state, self._lane.upload(slots), grads, rule)

    def write(self, slots: I64, rows: F32) -> None:
        self._put(slots, self._lane.upload(rows))

    @property
    def _width(self) -> int:
        return self._vectors.shape[1] + self._state.shape[1]

    def _put(self, slots: I64, rows: Tensor) -> None:
        at, rows = self._lane.upload(slots), rows.to(self._device, non_blocking=True)
        dim = self._vectors.shape[1]
        self._vectors.index_copy_(0, at, rows[:, :dim])
        if dim < self._width:
            self._state.index_copy_(0, at, rows[:, dim:])


class _OnItsWay:
    def __init__(self, rows: Tensor, mark: Mark, lane: CopyLane) -> None:
        self._rows = rows
        self._mark = mark
        self._lane = lane

    def array(self) -> F32:
        self._lane.finish(self._mark)
        array: F32 = self._rows.numpy()
        return array
