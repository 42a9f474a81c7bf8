"""What waits for the next optimizer step: the rows of the last training forward, and gradients from before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from headrace.embed.arrays import U32, U64
from headrace.embed.row_gradients import RowGradients, SumRows, added, moved, rows_where

Rows = Sequence[RowGradients | None]
"""One entry a group."""


class PendingGradients:
    """Gradients between two steps, one set of rows a group.

    *Collecting*: the rows of the last forward, whose leaves autograd adds to. *Kept*: rows with a gradient that is
    summed already. ``fold`` moves gradients from the first to the second; the leaves go on collecting. `show` is called
    with the leaves of both, a list a group, whenever they change. Rows of the tables with uids `frozen` are not kept.
    """

    def __init__(
        self, num_groups: int, frozen: U32, sum_rows: SumRows, show: Callable[[list[list[Tensor]]], None]
    ) -> None:
        self._num_groups = num_groups
        self._frozen = frozen
        self._sum_rows = sum_rows
        self._show = show
        self._collecting: Rows = [None] * num_groups
        self._kept: list[RowGradients | None] = [None] * num_groups

    def collect(self, rows: Sequence[RowGradients]) -> None:
        """From now on collect for `rows`, those of a new forward; see :meth:`let_go`."""
        self._collecting = list(rows)
        self._changed()

    def let_go(self) -> None:
        """Keep what was collected; its rows may leave the slots of their plan."""
        self.fold()
        self.pass_by()

    def pass_by(self) -> None:
        """Collect no longer, and drop what was collected since the last fold; what is kept may leave its slots.

        A gradient that comes later has nobody to take it: the ``backward`` that brings it raises RuntimeError.
        """
        for rows in self._collecting:
            if rows is not None and rows.leaf.requires_grad:
                rows.leaf.register_post_accumulate_grad_hook(_refuse)  # type: ignore[no-untyped-call]
        self._collecting = [None] * self._num_groups
        self._kept = [None if rows is None else replace(rows, slots=None) for rows in self._kept]
        self._changed()

    def add(self, group: int, rows: RowGradients) -> None:
        """Add gradients that did not come from autograd."""
        self._keep(group, rows)
        self._changed()

    def fold(self) -> None:
        """Move what was collected to what is kept."""
        for group, rows in enumerate(self._collecting):
            if rows is not None and rows.leaf.grad is not None:
                self._keep(group, moved(rows))
        self._changed()

    def zero(self) -> None:
        """Drop all gradients, and go on collecting."""
        self._kept = [None] * self._num_groups
        for rows in self._collecting:
            if rows is not None:
                rows.leaf.grad = None
        self._changed()

    def forget(self, group: int, locations: U64) -> None:
        """Drop what is kept of the rows at `locations`; of the last forward nothing may be collecting any more."""
        rows = self._kept[group]
        if rows is not None:
            others = ~np.isin(rows.keys.locations, locations)
            self._kept[group] = rows_where(rows, others) if others.any() else None
            self._changed()

    def take(self) -> list[RowGradients | None]:
        """All gradients, each row once; nothing waits any more."""
        self.fold()
        taken = self._kept
        self.clear()
        return taken

    def clear(self) -> None:
        """Drop all gradients and rows."""
        self._kept = [None] * self._num_groups
        self.pass_by()

    def kept(self) -> list[RowGradients | None]:
        """All gradients, each row once; they go on waiting."""
        self.fold()
        return list(self._kept)

    @property
    def any(self) -> bool:
        """Whether any row has a gradient."""
        return any(rows is not None and rows.leaf.grad is not None for rows in (*self._collecting, *self._kept))

    @property
    def expects_some(self) -> bool:
        """Whether a backward of the last forward would give gradients."""
        return any(rows is not None and len(rows.leaf) > 0 and rows.leaf.requires_grad for rows in self._collecting)

    def _keep(self, group: int, rows: RowGradients) -> None:
        if len(self._frozen):
            frozen = np.isin(rows.keys.tables, self._frozen)
            rows = rows_where(rows, ~frozen) if frozen.any() else rows
        earlier = self._kept[group]
        self._kept[group] = rows if earlier is None else added(earlier, rows, self._sum_rows)

    def _changed(self) -> None:
        pairs = zip(self._kept, self._collecting, strict=True)
        self._show([[rows.leaf for rows in pair if rows is not None] for pair in pairs])


def _refuse(leaf: Tensor) -> None:
    leaf.grad = None
    raise RuntimeError(
        "a gradient for the rows of a batch that is passed by: after its stage(batch) came another batch, a step or a "
        "skip, so that it would be lost; call backward() before them"
    )
