"""Memory of an arena's rows, by slot: what moves, reads and updates them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from headrace.embed._rows import SlotRows, SlotSource
from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, U64
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.copy_lane import Mark
from headrace.embed.optimizers import UpdateRule
from headrace.embed.sources import VectorSource
from headrace.ingest.step_plan import FetchKeys


class Staged(Protocol):
    """Rows that were copied out of their slots, which may be written again."""

    def array(self) -> F32:
        """The rows float32 [n, dim + state] in host memory, once they are there."""


class ArenaRows(Protocol):
    """Rows float32 [dim + state] in slots.

    `take_out` and `bring_in` may be called by a thread of their own, one call at a time, beside `update` and a use of
    `source` on other slots. Where copies run behind the call (see `copy_lane.py`), they run after the mark that was
    given, and `settle` lets the caller's own work come after all of them.
    """

    def mark(self) -> Mark:
        """What the trainer has asked for until now, for the movements that must come after it."""

    def take_out(self, slots: I64, after: Mark) -> Staged:
        """Copy the rows in `slots` out."""

    def bring_in(self, store: ChunkStore, locations: U64, keys: FetchKeys, slots: I64, after: Mark) -> Mark:
        """Read rows of `store` into `slots`; what the trainer's :meth:`hold` waits for."""

    def hold(self, mark: Mark) -> None:
        """What the trainer asks for next comes after `mark`."""

    def settle(self) -> None:
        """What the trainer asks for next comes after every movement."""

    def source(self, slots: I64) -> VectorSource:
        """The vectors in `slots`."""

    def update(self, slots: I64, grads: Tensor, rule: UpdateRule) -> None:
        """One optimizer step on the rows in `slots` (unique), grads float32 [n, dim]."""

    def write(self, slots: I64, rows: F32) -> None:
        """Replace the rows in `slots` (unique) by rows float32 [n, dim + state]."""


class HostRows:
    """Rows in host memory, moved, read and updated by the native kernels; memory is taken as slots are first used."""

    def __init__(self, capacity: int, dim: int, width: int, threads: Threads | None = None) -> None:
        self._dim = dim
        self._threads = threads
        self._values: F32 = np.zeros((capacity, width), np.float32)

    def mark(self) -> Mark:
        return None

    def take_out(self, slots: I64, after: Mark) -> Staged:
        out = np.empty((len(slots), self._values.shape[1]), np.float32)
        SlotRows.gather(self._values, slots, out)
        return _Copied(out)

    def bring_in(self, store: ChunkStore, locations: U64, keys: FetchKeys, slots: I64, after: Mark) -> Mark:
        store.read(locations, keys.ids, keys.tables, keys.missing, self._values, slots=slots)
        return None

    def hold(self, mark: Mark) -> None:
        """Rows are where they belong when `bring_in` returns."""

    def settle(self) -> None:
        """As :meth:`hold`."""

    def source(self, slots: I64) -> VectorSource:
        return SlotSource(self._values, slots, self._dim)

    def update(self, slots: I64, grads: Tensor, rule: UpdateRule) -> None:
        SlotRows.update(self._values, slots, grads.contiguous().numpy(), rule.native, self._threads)

    def write(self, slots: I64, rows: F32) -> None:
        self._values[slots] = rows


class _Copied:
    def __init__(self, rows: F32) -> None:
        self._rows = rows

    def array(self) -> F32:
        return self._rows
