"""What a batch's forward works with: its bags, its rows, and where they are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.embed._threads import Threads
from headrace.embed.arrays import F32
from headrace.embed.batch_check import check_batch
from headrace.embed.finite import check_finite
from headrace.embed.kernels import Kernels
from headrace.embed.layout import GroupLayout
from headrace.embed.pooling import Bags
from headrace.embed.residency import Residency
from headrace.embed.row_gradients import RowGradients, leaf_of
from headrace.embed.row_keys import RowKeys
from headrace.embed.sources import VectorSource
from headrace.formats.schema import Schema
from headrace.ingest.batch import Batch
from headrace.ingest.step_plan import StepPlan

_HOW_TO_DROP = (
    "; nothing was updated: stage.skip(batch) drops what this batch gave, stage.optimizer().zero_grad() all that waits"
)


@dataclass(frozen=True, eq=False)
class Forward:
    """One batch that went forward: its bags, rows and where they are found, one entry a group."""

    batch: Batch
    bags: tuple[Bags, ...]
    rows: tuple[RowGradients, ...]
    sources: tuple[VectorSource, ...]

    def check_as_it_was(self) -> None:
        """RuntimeError that names what of the batch was changed in place since."""
        for one in self.bags:
            one.as_checked.check()

    @property
    def trains(self) -> bool:
        """Whether it is part of a training step."""
        return any(row.leaf.requires_grad for row in self.rows)


def read_vectors(source: VectorSource, threads: Threads | None = None) -> F32:
    """The vectors float32 [count, dim] of a source, in host memory."""
    out = np.empty((source.count, source.dim), np.float32)
    source.read(out, threads)
    return out


def checked_bags(
    batch: Batch, schema: Schema, layouts: Sequence[GroupLayout], kernels: Kernels
) -> tuple[tuple[Bags, ...], list[RowKeys]]:
    """Bags and row keys of a batch's groups; ValueError or IndexError tells what does not fit."""
    check_batch(batch, schema, kernels.device)
    pairs = zip(batch.groups, layouts, strict=True)
    bags = tuple(kernels.bags(group, layout, batch.num_rows) for group, layout in pairs)
    return bags, [RowKeys.of(group) for group in batch.groups]


def find_rows(
    batch: Batch,
    bags: tuple[Bags, ...],
    keys: Sequence[RowKeys],
    plan: StepPlan | None,
    residency: Residency,
    kernels: Kernels,
) -> Forward:
    """The forward of a batch whose rows are where they are to be; without a plan they collect no gradients."""
    rows = []
    for g, (one, key) in enumerate(zip(bags, keys, strict=True)):
        trained = plan is not None and bool(one.layout.trained.any())
        leaf = leaf_of(len(key.locations), one.layout.dim, trained=trained, device=kernels.device)
        rows.append(RowGradients(key, leaf, residency.slots(plan, g) if plan is not None else None))
    sources = tuple(residency.source(g, row.keys, row.slots) for g, row in enumerate(rows))
    return Forward(batch, bags, tuple(rows), sources)


def check_finite_vectors(forward: Forward, schema: Schema) -> None:
    """FloatingPointError that names table, id and row of the first vector that is not finite."""
    for g, (bags, rows) in enumerate(zip(forward.bags, forward.rows, strict=True)):
        check_finite("vector", read_vectors(forward.sources[g]), rows.keys, schema, forward.batch, bags)


def check_finite_gradients(
    kept: Sequence[RowGradients | None], last: Forward | None, schema: Schema, *, hint: str = _HOW_TO_DROP
) -> None:
    """FloatingPointError for the first gradient that is not finite, with its row if `last` has it, and what to do."""
    for g, rows in enumerate(kept):
        grad = None if rows is None else rows.grad
        if rows is not None and grad is not None:
            bags = None if last is None else last.bags[g]
            batch = None if last is None else last.batch
            check_finite("gradient", grad, rows.keys, schema, batch, bags, hint=hint)
