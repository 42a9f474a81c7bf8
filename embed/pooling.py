"""From unique rows to pooled features and back.

Forward: the bag of feature f and row b is the sum (times per-sample weights) or mean of its rows; an empty bag is 0.
The terms are added in float32 in the order of the ids; a mean divides the sum by the number of ids. Backward: the
gradient of a unique row is the sum over its occurrences, in ascending position, of its bag's gradient (times the
weight, or divided by the number of ids). So results do not depend on threads, and a NumPy twin gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headrace.embed import _pool, _rows
from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, plain
from headrace.embed.as_checked import AsChecked
from headrace.embed.buffers import BufferPool
from headrace.embed.layout import GroupLayout
from headrace.embed.step_times import StepTimes
from headrace.ingest.batch import BatchGroup


@dataclass(frozen=True)
class Bags:
    """The bags of one group as host arrays; see :class:`headrace.ingest.batch.BatchGroup` for the fields.

    `one_hot`: every bag is known to have exactly one id. `as_checked` tells whether the batch's tensors, whose memory
    these arrays share, are what they were.
    """

    layout: GroupLayout
    query_ids: I64
    offsets: I64
    weights: F32 | None
    positions: I64
    position_offsets: I64
    one_hot: bool
    as_checked: AsChecked

    @property
    def num_unique(self) -> int:
        return len(self.position_offsets) - 1


def bags_of(
    group: BatchGroup, layout: GroupLayout, num_rows: int, threads: Threads | None = None, *, by_row: bool = True
) -> Bags:
    """Views of a batch's group (no copies), checked, so that the kernels stay inside them.

    `by_row`: some kernel goes from the unique rows to their occurrences; else nobody reads those, nor are they checked.
    ValueError or IndexError tells what does not fit; weights are refused for mean features.
    """
    if group.num_features != len(layout.features):
        raise ValueError(f"a group of {group.num_features} features for the layout of {', '.join(layout.features)}")
    arrays = (group.query_ids.numpy(), group.offsets.numpy())
    occurrences = (group.positions.numpy(), group.position_offsets.numpy())
    weights = None if group.weights is None else group.weights.numpy()
    if len(arrays[1]) != group.num_features * num_rows + 1:
        raise ValueError(f"{len(arrays[1])} offsets for {group.num_features} features of {num_rows} rows")
    if weights is not None and layout.mean.any():
        name = layout.features[int(layout.mean.argmax())]
        raise ValueError(f"feature {name!r}: per-sample weights need pooling sum, not mean")
    tables = group.unique_tables.numpy()
    one_hot = _pool.check_bags(*arrays, layout.feature_tables, tables, threads)
    if len(occurrences[1]) != len(tables) + 1:
        raise ValueError(f"{len(tables)} tables for {len(occurrences[1]) - 1} unique rows")
    if by_row:
        _pool.check_occurrences(*occurrences, len(arrays[0]), threads)
    of_rows = ("locations", "unique_ids", "unique_tables", "missing")  # which the step goes by
    names = ("query_ids", "offsets", "weights", *(("positions", "position_offsets") if by_row else ()), *of_rows)
    as_checked = AsChecked({name: getattr(group, name) for name in names})
    return Bags(layout, *arrays, weights, *occurrences, one_hot, as_checked)


def pool_forward(bags: Bags, source: _rows.RowSource, out: F32, threads: Threads | None = None) -> None:
    """Pool the unique rows that `source` finds into the group's columns of out float32 [B, D]."""
    if source.count != bags.num_unique or source.dim != bags.layout.dim:
        raise ValueError(
            f"{source.count} rows of dim {source.dim} for {bags.num_unique} unique rows of dim {bags.layout.dim}"
        )
    layout = bags.layout
    _pool.pool_forward(
        source, bags.query_ids, bags.offsets, bags.weights, layout.columns, layout.mean, out, threads,
        one_hot=bags.one_hot,
    )  # fmt: skip


def matrix_source(rows: F32) -> _rows.RowSource:
    """The unique rows float32 [U, dim] as they stand in a matrix."""
    return _rows.SlotSource(rows, np.arange(len(rows)), rows.shape[1])


def pool_backward(bags: Bags, grad: F32, out: F32 | None = None, threads: Threads | None = None) -> F32:
    """`out` float32 [U, dim], or a new array, filled with the gradients of the unique rows from grad float32 [B, D].

    Columns of a wider array, as `torch.cat` hands back, are read where they are: a copy would cost half of the sum.
    """
    layout = bags.layout
    if out is None:
        out = np.empty((bags.num_unique, layout.dim), np.float32)
    _pool.pool_backward(
        grad if _has_whole_rows(grad) else np.ascontiguousarray(grad),
        bags.query_ids,
        bags.offsets,
        bags.weights,
        layout.columns,
        layout.mean,
        *layout.by_table,
        np.zeros(bags.num_unique, np.uint8),
        out,
        threads,
        one_hot=bags.one_hot,
    )
    return out


def _has_whole_rows(grad: F32) -> bool:
    """Whether the values of each row lie side by side: not so in a gradient that is expanded, or turned."""
    between, within = grad.strides
    return within == grad.itemsize and between >= 0 and between % grad.itemsize == 0


def sequence_backward(bags: Bags, grad: F32, out: F32 | None = None, threads: Threads | None = None) -> F32:
    """`out` float32 [U, dim], or a new array, filled from grad float32 [n, dim] of the n ids of sequence features."""
    starts = np.full(len(bags.query_ids), -1, np.int64)
    first = 0
    for feature, (begin, end) in zip(bags.layout.sequences, sequence_ranges(bags), strict=True):
        if bags.layout.trained[feature]:
            starts[begin:end] = np.arange(first, first + end - begin) * bags.layout.dim
        first += end - begin
    return _segment_sum(bags, grad, starts, None, out, threads, divide=False)


def sequence_ranges(bags: Bags) -> list[tuple[int, int]]:
    """The ids of each sequence feature, as (begin, end) in `query_ids`."""
    num_rows = (len(bags.offsets) - 1) // len(bags.layout.features)
    return [(int(bags.offsets[f * num_rows]), int(bags.offsets[(f + 1) * num_rows])) for f in bags.layout.sequences]


def _segment_sum(
    bags: Bags, grad: F32, starts: I64, factors: F32 | None, out: F32 | None, threads: Threads | None, *, divide: bool
) -> F32:
    if out is None:
        out = np.empty((bags.num_unique, bags.layout.dim), np.float32)
    flat = np.ascontiguousarray(grad).reshape(-1)
    _pool.segment_sum(flat, starts, factors, divide, bags.positions, bags.position_offsets, out, threads)
    return out


@dataclass(frozen=True)
class PoolWork:
    """What pooling works with beside the bags: threads, where its seconds are counted, and buffers for outputs and
    gradients."""

    threads: Threads | None = None
    times: StepTimes = field(default_factory=lambda: StepTimes(moves_beside=False))
    buffers: BufferPool = field(default_factory=BufferPool)


def pool(
    bags: Sequence[Bags],
    sources: Sequence[_rows.RowSource],
    leaves: Sequence[Tensor],
    shape: tuple[int, int],
    work: PoolWork,
) -> Tensor:
    """float32 `shape` [B, D] from the unique rows that each group's source finds.

    Differentiable (once) in `leaves`, which stand for the rows: float32 [U_g, dim_g], their values are not read.
    """
    result: Tensor = _Pool.apply(tuple(bags), tuple(sources), shape, work, *leaves)  # type: ignore[no-untyped-call]
    return result


def sequence_values(bags: Bags, rows: F32, leaf: Tensor, work: PoolWork) -> Tensor:
    """float32 [n, dim]: one of rows float32 [U, dim] for each id of the group's sequence features, feature after
    feature; differentiable (once) in `leaf`."""
    result: Tensor = _Sequences.apply(bags, rows, work, leaf)  # type: ignore[no-untyped-call]
    return result


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        bags: tuple[Bags, ...],
        sources: tuple[_rows.RowSource, ...],
        shape: tuple[int, int],
        work: PoolWork,
        *leaves: Tensor,
    ) -> Tensor:
        ctx.bags, ctx.work = bags, work
        out = work.buffers.take(shape)
        for one, source in zip(bags, sources, strict=True):
            pool_forward(one, source, out.numpy(), work.threads)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        array, work = plain(grad).numpy(), ctx.work
        grads: list[Tensor | None] = []
        with work.times.of("backward"):
            for one, wanted in zip(ctx.bags, ctx.needs_input_grad[4:], strict=True):
                one.as_checked.check()
                grads.append(work.buffers.take((one.num_unique, one.layout.dim)) if wanted else None)
                if wanted:
                    pool_backward(one, array, grads[-1].numpy(), work.threads)  # type: ignore[union-attr]
        return (None, None, None, None, *grads)


class _Sequences(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bags: Bags, rows: F32, work: PoolWork, leaf: Tensor) -> Tensor:
        ctx.bags, ctx.work = bags, work
        ranges = sequence_ranges(bags)
        wanted = [bags.query_ids[begin:end] for begin, end in ranges]
        ids = np.concatenate([np.empty(0, np.int64), *wanted])
        out = work.buffers.take((len(ids), bags.layout.dim))
        _rows.SlotRows.gather(rows, ids, out.numpy(), work.threads)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        bags, work = ctx.bags, ctx.work
        with work.times.of("backward"):
            bags.as_checked.check()
            out = work.buffers.take((bags.num_unique, bags.layout.dim))
            sequence_backward(bags, plain(grad).contiguous().numpy(), out.numpy(), work.threads)
        return None, None, None, out
