"""What waits for the next optimizer step: the rows of the last training forward, and gradients from before it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.embed.arrays import U32, U64
from headrace.embed.row_gradients import RowGradients, SumRows, added, aliased, rows_where, with_gradients
from headrace.embed.row_keys import RowKeys
from headrace.formats.uninterrupted import uninterrupted

Rows = Sequence[RowGradients | None]
"""One entry a group."""

BatchKey = tuple[int, int]
"""(run, step) of a batch's plan; parts and copies of a batch have the same."""


class _Late(NamedTuple):
    """Rows of a group whose gradient came when another forward collected already; `order` is that of the forwards."""

    order: int
    group: int
    batch: BatchKey | None
    rows: RowGradients


class _Sums(NamedTuple):
    """What is kept with all batches, and without the one that collects; one entry a group."""

    kept: list[RowGradients | None]
    before: list[RowGradients | None]


class PendingGradients:
    """Gradients between two steps, one set of rows a group.

    *Collecting*: the rows of the last forward, whose leaves autograd adds to. *Late*: leaves of forwards before it that
    got a gradient all the same, as when several batches have one ``backward``. *Kept*: rows with a gradient that is
    summed already, in the order of the forwards. ``fold`` moves gradients from the first two to the third; the leaves
    go on collecting. *Before*: what would be kept without the batch that collects, to which ``pass_by`` of that batch
    goes back; the same objects as what is kept where that batch has added nothing.

    `show` is called with all leaves, a list a group, whenever they change. Rows of the tables with uids `frozen` are
    not kept. With `one_batch` the places of rows mean something in their batch only: a late gradient is an error.
    """

    def __init__(
        self,
        num_groups: int,
        frozen: U32,
        sum_rows: SumRows,
        show: Callable[[list[list[Tensor]]], None],
        *,
        one_batch: bool = False,
    ) -> None:
        self._num_groups = num_groups
        self._frozen = frozen
        self._sum_rows = sum_rows
        self._show = show
        self._one_batch = one_batch
        self._collecting: Rows | None = None
        self._late: list[_Late] = []
        self._kept: list[RowGradients | None] = [None] * num_groups
        self._before: list[RowGradients | None] = [None] * num_groups
        self._batch: BatchKey | None = None
        self._batches: set[BatchKey | None] = set()
        self._num_forwards = 0
        self._generation = 0

    def collect(self, rows: Sequence[RowGradients], batch: BatchKey) -> None:
        """From now on collect for `rows`, those of a new forward of `batch`, after :meth:`let_go`."""
        if batch != self._batch:
            self._batch, self._before = batch, list(self._kept)
        self._collecting = list(rows)
        self._num_forwards += 1
        self._changed()

    def let_go(self) -> None:
        """Keep what was collected; its rows may leave the slots of their plan, and the batch's memory may get other
        values. What comes yet is late."""
        self._fold()
        self._listen()
        self._collecting = None
        self._kept = [None if r is None else r.lasting() for r in self._kept]
        self._changed()

    def check_pass_by(self, batch: BatchKey) -> None:
        """RuntimeError if the gradients of `batch` cannot be told from those of others any more."""
        if batch != self._batch and batch in self._batches:
            raise RuntimeError(
                f"skip() of step {batch[1]} of run {batch[0]}, whose gradients have been added to those of a later "
                "batch: skip a batch before the next one goes forward, or drop the gradients of all with "
                "stage.optimizer().zero_grad()"
            )

    def pass_by(self, batch: BatchKey) -> None:
        """Drop what `batch` gave, scaled or not, if it is the one that collects; what others gave is as it was."""
        if batch == self._batch:
            self._empty_leaves([late.rows for late in self._late if late.batch == batch])
            self._late = [late for late in self._late if late.batch != batch]
            self._empty_leaves(self._collecting or ())
            self._fold()
            self._collecting = None
            self._kept = list(self._before)
            self._batches.discard(batch)
        self._batch, self._before = None, list(self._kept)
        self._changed()

    def add(self, parts: Sequence[tuple[int, RowGradients]]) -> None:
        """Add gradients (group, rows) that did not come from autograd; all of them, or none on an error."""
        sums = _Sums(list(self._kept), list(self._before))
        for group, rows in parts:
            self._keep(sums, group, rows, own=False)
        self._kept, self._before = sums
        self._changed()

    def fold(self) -> None:
        """Move what was collected, and what was late, to what is kept."""
        self._fold()
        self._changed()

    def folded(self) -> Rows:
        """All gradients, each row once, to be read only; they go on waiting."""
        self.fold()
        return list(self._kept)

    def zero(self) -> None:
        """Drop all gradients, and go on collecting."""
        self._forget()
        self._empty_leaves(self._collecting or ())
        self._changed()

    def take(self) -> list[RowGradients | None]:
        """All gradients, each row once; nothing waits any more. What comes yet waits for the next step."""
        self._fold()
        taken = self._kept
        self._forget()
        self._listen()
        self._collecting, self._batch = None, None
        self._changed()
        return taken

    def clear(self) -> None:
        """Drop all gradients and rows: their places are no longer theirs."""
        self._forget()
        self._listen()
        self._collecting, self._batch = None, None
        self._generation += 1
        self._changed()

    def forget(self, group: int, locations: U64) -> None:
        """Drop what waits of the rows at `locations`, whose places become others', after :meth:`let_go`. A gradient of
        a forward before it is an error from now on."""
        self._generation += 1
        earlier, before = self._kept[group], self._before[group]
        self._kept[group] = _without(earlier, locations)
        self._before[group] = self._kept[group] if before is earlier else _without(before, locations)
        self._changed()

    def kept(self) -> list[RowGradients | None]:
        """All gradients, each row once, that may be scaled in place; they go on waiting."""
        self.fold()
        if self._batch is not None:
            pairs = zip(self._before, self._kept, strict=True)
            self._before = [_copied(b) if b is not None and b is k else b for b, k in pairs]
        return list(self._kept)

    @property
    def any(self) -> bool:
        """Whether any row has a gradient."""
        rows = (*(self._collecting or ()), *self._kept, *(late.rows for late in self._late))
        return any(one is not None and one.leaf.grad is not None for one in rows)

    @property
    def all_finite(self) -> bool:
        """Whether no gradient has a NaN or an infinity."""
        grads = (leaf.grad for leaves in self._leaves() for leaf in leaves)
        return all(bool(torch.isfinite(grad).all()) for grad in grads if grad is not None)

    @property
    def num_batches(self) -> int:
        """Batches whose gradients are kept."""
        return len(self._batches)

    @property
    def collects(self) -> bool:
        """Whether the rows of the last forward are where it found them, and collect."""
        return self._collecting is not None

    def is_of(self, batch: BatchKey) -> bool:
        """Whether `batch` is the one that collects, or did last."""
        return batch == self._batch

    @property
    def has_some_of_last(self) -> bool:
        """Whether the batch that collects has given gradients that wait."""
        collected = any(r is not None and r.leaf.grad is not None for r in self._collecting or ())
        return collected or self._batch in self._batches

    @property
    def expects_some(self) -> bool:
        """Whether a backward of the last forward would give gradients."""
        return any(r is not None and len(r.leaf) > 0 and r.leaf.requires_grad for r in self._collecting or ())

    def _fold(self) -> None:
        """On an error, as of memory that is not there, everything waits as it did."""
        if not self._late and all(one is None or one.leaf.grad is None for one in self._collecting or ()):
            return
        sums, batches = _Sums(list(self._kept), list(self._before)), set(self._batches)
        folded = []
        for _, group, batch, rows in sorted(self._late, key=lambda one: one[:2]):
            batches.add(batch)
            folded.append(rows)
            self._keep(sums, group, aliased(rows), own=batch == self._batch)
        for group, one in enumerate(self._collecting or ()):
            if one is not None and one.leaf.grad is not None:
                batches.add(self._batch)
                folded.append(one)
                self._keep(sums, group, aliased(one), own=True)
        with uninterrupted():  # else what was added would be so again
            self._kept, self._before = sums
            self._batches = batches
            self._late = []
            self._empty_leaves(folded)

    def _forget(self) -> None:
        self._kept, self._before = [None] * self._num_groups, [None] * self._num_groups
        self._empty_leaves([late.rows for late in self._late])
        self._late = []
        self._batches = set()

    @staticmethod
    def _empty_leaves(rows: Rows) -> None:
        """The next gradient that autograd gives them is their first."""
        for one in rows:
            if one is not None:
                one.leaf.grad = None

    def _keep(self, sums: _Sums, group: int, rows: RowGradients, *, own: bool) -> None:
        """Add rows to `sums`; `own`: of the batch that collects."""
        if len(self._frozen):
            frozen = np.isin(rows.keys.tables, self._frozen)
            rows = rows_where(rows, ~frozen) if frozen.any() else rows
        earlier, before = sums.kept[group], sums.before[group]
        sums.kept[group] = self._sum(earlier, rows)
        if not own:
            sums.before[group] = sums.kept[group] if before is earlier else self._sum(before, rows)

    def _sum(self, earlier: RowGradients | None, rows: RowGradients) -> RowGradients:
        return rows if earlier is None else added(earlier, rows, self._sum_rows)

    def _listen(self) -> None:
        """A gradient that autograd gives the leaves that collect from now on is late."""
        for group, rows in enumerate(self._collecting or ()):
            if rows is not None and rows.leaf.requires_grad:
                hook = self._hook(group, rows.keys)
                rows.leaf.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _hook(self, group: int, keys: RowKeys) -> Callable[[Tensor], None]:
        """The leaf alone keeps it alive, and the graph of its forward alone keeps the leaf."""
        this, batch, order, generation = weakref.ref(self), self._batch, self._num_forwards, self._generation

        def came(leaf: Tensor) -> None:
            pending = this()
            if pending is not None:
                pending._came_late(_Late(order, group, batch, RowGradients(keys, leaf)), generation)

        return came

    def _came_late(self, late: _Late, generation: int) -> None:
        """Called within ``backward``, which raises what this raises."""
        if generation != self._generation:
            late.rows.leaf.grad = None
            raise RuntimeError(
                "backward of a batch whose rows were replaced after its forward, by a state that was loaded or by "
                "stage.forget_rows: after a state call stage(batch) again; after forget_rows iterate over the loader "
                "anew, since its places may be other rows'"
            )
        if self._one_batch:
            late.rows.leaf.grad = None
            raise RuntimeError(
                "backward of a batch after the forward of a later one, or after its step: over ranks each batch has a "
                "forward, a backward and a step of its own"
            )
        if all(one.rows.leaf is not late.rows.leaf for one in self._late):
            self._late.append(late._replace(rows=late.rows.lasting()))
        self._changed()

    def _leaves(self) -> list[list[Tensor]]:
        leaves: list[list[Tensor]] = [[] for _ in range(self._num_groups)]
        for rows in (self._kept, self._collecting or ()):
            for group, one in enumerate(rows):
                if one is not None:
                    leaves[group].append(one.leaf)
        for late in self._late:
            leaves[late.group].append(late.rows.leaf)
        return leaves

    def _changed(self) -> None:
        self._show(self._leaves())


def _without(rows: RowGradients | None, locations: U64) -> RowGradients | None:
    """The rows that are not at `locations`, None if there are none."""
    if rows is None:
        return None
    others = ~np.isin(rows.keys.locations, locations)
    return rows_where(rows, others) if others.any() else None


def _copied(rows: RowGradients) -> RowGradients:
    """The same gradients in memory of their own."""
    grad = rows.leaf.grad
    return rows if grad is None else with_gradients(rows.keys, grad.clone(), rows.slots)
