"""From unique rows to pooled features and back.

Forward: the bag of feature f and row b is the sum (times per-sample weights) or mean of its rows; an empty bag is 0.
The terms are added in float32 in the order of the ids; a mean divides the sum by the number of ids. Backward: the
gradient of a unique row is the sum over its occurrences, in ascending position, of its bag's gradient (times the
weight, or divided by the number of ids). So results do not depend on threads, and a NumPy twin gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headrace.embed import _pool, _rows
from headrace.embed.arrays import F32, I64
from headrace.embed.layout import GroupLayout
from headrace.ingest.batch import BatchGroup


@dataclass(frozen=True)
class Bags:
    """The bags of one group as host arrays; see :class:`headrace.ingest.batch.BatchGroup` for the fields."""

    layout: GroupLayout
    query_ids: I64
    offsets: I64
    weights: F32 | None
    positions: I64
    position_offsets: I64

    @property
    def num_unique(self) -> int:
        return len(self.position_offsets) - 1


def bags_of(group: BatchGroup, layout: GroupLayout, num_rows: int) -> Bags:
    """Views of a batch's group (no copies), checked, so that the kernels stay inside them.

    ValueError or IndexError tells what does not fit; weights are refused for mean features.
    """
    if group.num_features != len(layout.features):
        raise ValueError(f"a group of {group.num_features} features for the layout of {', '.join(layout.features)}")
    bags = Bags(
        layout,
        group.query_ids.numpy(),
        group.offsets.numpy(),
        None if group.weights is None else group.weights.numpy(),
        group.positions.numpy(),
        group.position_offsets.numpy(),
    )
    if len(bags.offsets) != group.num_features * num_rows + 1:
        raise ValueError(f"{len(bags.offsets)} offsets for {group.num_features} features of {num_rows} rows")
    if bags.weights is not None and layout.mean.any():
        name = layout.features[int(layout.mean.argmax())]
        raise ValueError(f"feature {name!r}: per-sample weights need pooling sum, not mean")
    _pool.check_bags(bags.query_ids, bags.offsets, bags.positions, bags.position_offsets)
    return bags


def pool_forward(bags: Bags, rows: F32, out: F32) -> None:
    """Pool rows float32 [U, dim] into the group's columns of out float32 [B, D]."""
    layout = bags.layout
    _pool.pool_forward(rows, bags.query_ids, bags.offsets, bags.weights, layout.columns, layout.mean, out)


def pool_backward(bags: Bags, grad: F32) -> F32:
    """Gradients float32 [U, dim] of the unique rows from grad float32 [B, D]."""
    layout = bags.layout
    starts = np.empty(len(bags.query_ids), np.int64)
    averaged = bool(layout.mean.any()) and not _pool.is_one_hot(bags.offsets)
    divisors = np.empty(len(starts), np.float32) if averaged else None
    _pool.bag_terms(bags.offsets, layout.columns, layout.mean, grad.shape[1], starts, divisors)
    return _segment_sum(bags, grad, starts, bags.weights if divisors is None else divisors, divide=averaged)


def sequence_backward(bags: Bags, grad: F32) -> F32:
    """Gradients float32 [U, dim] of the unique rows from grad float32 [n, dim] of the n ids of sequence features."""
    starts = np.full(len(bags.query_ids), -1, np.int64)
    first = 0
    for begin, end in sequence_ranges(bags):
        starts[begin:end] = np.arange(first, first + end - begin) * bags.layout.dim
        first += end - begin
    return _segment_sum(bags, grad, starts, None, divide=False)


def sequence_ranges(bags: Bags) -> list[tuple[int, int]]:
    """The ids of each sequence feature, as (begin, end) in `query_ids`."""
    num_rows = (len(bags.offsets) - 1) // len(bags.layout.features)
    return [(int(bags.offsets[f * num_rows]), int(bags.offsets[(f + 1) * num_rows])) for f in bags.layout.sequences]


def _segment_sum(bags: Bags, grad: F32, starts: I64, factors: F32 | None, *, divide: bool) -> F32:
    out = np.empty((bags.num_unique, bags.layout.dim), np.float32)
    flat = np.ascontiguousarray(grad).reshape(-1)
    _pool.segment_sum(flat, starts, factors, divide, bags.positions, bags.position_offsets, out)
    return out


def pool(bags: Sequence[Bags], rows: Sequence[Tensor], num_rows: int, output_dim: int) -> Tensor:
    """float32 [B, D] from the unique rows float32 [U_g, dim_g] of each group; differentiable (once) in the rows."""
    result: Tensor = _Pool.apply(tuple(bags), num_rows, output_dim, *rows)  # type: ignore[no-untyped-call]
    return result


def sequence_values(bags: Bags, rows: Tensor) -> Tensor:
    """float32 [n, dim]: one row for each id of the group's sequence features, feature after feature; differentiable."""
    result: Tensor = _Sequences.apply(bags, rows)  # type: ignore[no-untyped-call]
    return result


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bags: tuple[Bags, ...], num_rows: int, output_dim: int, *rows: Tensor) -> Tensor:
        ctx.bags = bags
        out = torch.empty((num_rows, output_dim), dtype=torch.float32)
        for one, values in zip(bags, rows, strict=True):
            pool_forward(one, values.detach().numpy(), out.numpy())
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        array = grad.contiguous().numpy()
        wanted = ctx.needs_input_grad[3:]
        grads = (
            torch.from_numpy(pool_backward(one, array)) if want else None
            for one, want in zip(ctx.bags, wanted, strict=True)
        )
        return (None, None, None, *grads)


class _Sequences(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bags: Bags, rows: Tensor) -> Tensor:
        ctx.bags = bags
        ranges = sequence_ranges(bags)
        wanted = [bags.query_ids[begin:end] for begin, end in ranges]
        ids = np.concatenate([np.empty(0, np.int64), *wanted])
        out = np.empty((len(ids), bags.layout.dim), np.float32)
        _rows.SlotRows.gather(rows.detach().numpy(), ids, out)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, torch.from_numpy(sequence_backward(ctx.bags, grad.contiguous().numpy()))
