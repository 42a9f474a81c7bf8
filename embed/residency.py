"""Where the trainer's rows are between steps: in the chunks (direct), or in arenas that plans move.

The second is in `arena_residency.py`.

Both give the same parameters, bit for bit: an arena row is a copy of the chunk row, updated by the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, host_array
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.optimizers import UpdateRule
from headrace.embed.row_keys import RowKeys
from headrace.embed.sources import VectorSource
from headrace.ingest.step_plan import StepPlan


class Residency(Protocol):
    """What the stage asks of the place where rows live; `group` is the number of a row layout."""

    def enter(self, plan: StepPlan, keys: Sequence[RowKeys]) -> None:
        """Do the movements that a training batch's plan asks for; `keys` are its unique rows, one entry a group."""

    def slots(self, plan: StepPlan, group: int) -> I64 | None:
        """Where the plan that was entered last has put the unique rows of its batch, if in slots."""

    def source(self, group: int, keys: RowKeys, slots: I64 | None) -> VectorSource:
        """Where to find the newest vectors of rows: of `slots`, if a plan that was entered last has put them there."""

    def update(self, group: int, keys: RowKeys, slots: I64 | None, grads: Tensor, rule: UpdateRule) -> None:
        """One optimizer step on rows, with grads float32 [n, dim]; `slots` as in :meth:`source`.

        MemoryError: no row has changed.
        """

    def prepare_update(
        self, group: int, keys: RowKeys, slots: I64 | None, grads: Tensor, rule: UpdateRule, *, alone: bool = False
    ) -> Callable[[], None]:
        """All of :meth:`update` that may fail, but for the memory of a device, or wait; the call that it gives does the
        rest, once, and must be made before anything else is asked for.

        A step over several groups then fails before the first has changed. `alone` says that there is no other group:
        the call may then be out of memory, with no row changed.
        """

    def write(self, group: int, keys: RowKeys, rows: F32) -> None:
        """Replace rows by `rows` float32 [n, dim + state]."""

    def skip(self, plan: StepPlan) -> None:
        """Do the movements of a batch that is not trained on."""

    def flush(self) -> None:
        """Make the chunks hold the newest of every row; changes no residency."""

    def rest(self) -> None:
        """Until no other thread reads or writes the chunks, whatever became of what it did: none does before the next
        plan."""

    def empty(self) -> None:
        """Forget what is resident, without writing it back; the plans of the run that has begun are over."""

    def close(self, timeout_s: float) -> None:
        """End what runs in the background; it begins anew when it is needed."""


class DirectResidency:
    """Rows are read and updated in their chunks."""

    def __init__(self, stores: Sequence[ChunkStore], threads: Threads | None = None) -> None:
        self._stores = stores
        self._threads = threads

    def enter(self, plan: StepPlan, keys: Sequence[RowKeys]) -> None:
        """Nothing moves."""

    def slots(self, plan: StepPlan, group: int) -> I64 | None:
        return None

    def source(self, group: int, keys: RowKeys, slots: I64 | None) -> VectorSource:
        return self._stores[group].source(*keys)

    def update(self, group: int, keys: RowKeys, slots: I64 | None, grads: Tensor, rule: UpdateRule) -> None:
        self._stores[group].update(*keys, host_array(grads), rule, threads=self._threads)

    def prepare_update(
        self, group: int, keys: RowKeys, slots: I64 | None, grads: Tensor, rule: UpdateRule, *, alone: bool = False
    ) -> Callable[[], None]:
        store, array = self._stores[group], host_array(grads)
        if not alone:  # looking at all rows costs a little
            store.make_room(keys.locations)
        return lambda: store.update(*keys, array, rule, threads=self._threads)

    def write(self, group: int, keys: RowKeys, rows: F32) -> None:
        self._stores[group].write(keys.locations, rows)

    def skip(self, plan: StepPlan) -> None:
        """Nothing moves."""

    def flush(self) -> None:
        """The chunks always hold the newest."""

    def rest(self) -> None:
        """There is no other thread."""

    def empty(self) -> None:
        """Nothing is resident outside the chunks."""

    def close(self, timeout_s: float) -> None:
        """Nothing runs."""
