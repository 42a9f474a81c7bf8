"""Pooling and its backward by torch's operators, on any device; the twin of `pooling.py`.

Terms are added in the order of `pooling.py`, as long as a bag, and the occurrences of a row in a batch, are not longer
than a piece of `torch_segments.py`. So on the CPU the results have the native kernels' bits, but for two things: longer
sums agree to rounding, and -0 may be 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headrace.embed.arrays import I64
from headrace.embed.layout import GroupLayout
from headrace.embed.pooling import Bags, sequence_ranges
from headrace.embed.sources import TensorSource
from headrace.embed.step_times import StepTimes
from headrace.embed.torch_segments import segment_sums
from headrace.ingest.batch import BatchGroup


@dataclass(frozen=True)
class DeviceBags(Bags):
    """Bags with what the device works on: F features, B rows, nnz ids.

    `ids` int64 [nnz], `order` int64 [nnz] (the positions) and `ends` int64 [U + 1] (the position offsets) are tensors;
    `lengths` int64 [F·B] and `bag_ends` int64 [F·B + 1] too, None where every bag has one id. `factors` float32 [nnz]
    are the weights.
    """

    ids: Tensor
    order: Tensor
    ends: Tensor
    lengths: Tensor | None
    bag_ends: Tensor | None
    factors: Tensor | None

    @staticmethod
    def of(host: Bags, group: BatchGroup, device: torch.device) -> DeviceBags:
        """`host`, and the tensors of `group` on `device`: copies that run beside the host where they are pinned."""

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        ends = None if host.one_hot else there(group.offsets)
        return DeviceBags(
            **{name: getattr(host, name) for name in Bags.__dataclass_fields__},
            ids=there(group.query_ids),
            order=there(group.positions),
            ends=there(group.position_offsets),
            lengths=None if ends is None else ends[1:] - ends[:-1],
            bag_ends=ends,
            factors=None if group.weights is None else there(group.weights),
        )

    @property
    def num_rows(self) -> int:
        return (len(self.offsets) - 1) // len(self.layout.features)

    @property
    def counts(self) -> I64:
        """Occurrences int64 [U] of each unique row."""
        return np.diff(self.position_offsets)

    def bag_of_ids(self) -> Tensor:
        """int64 [nnz]: the bag of each id."""
        bags = len(self.offsets) - 1
        every = torch.arange(bags, device=self.ids.device)
        if self.lengths is None:
            return every
        return torch.repeat_interleave(every, self.lengths, output_size=len(self.query_ids))

    def divisors(self) -> Tensor | None:
        """float32 [F·B, 1]: the number of ids of each bag that is averaged, and has any; else 1. None: all are 1."""
        if self.lengths is None or not self.layout.mean.any():
            return None
        mean = torch.from_numpy(self.layout.mean.astype(np.bool_)).to(self.ids.device)
        of_features = self.lengths.view(len(self.layout.features), self.num_rows).clamp(min=1)
        return torch.where(mean[:, None], of_features, 1).to(torch.float32).view(-1, 1)


def pool_forward(bags: DeviceBags, source: TensorSource, out: Tensor) -> None:
    """Pool the unique rows of `source` into the group's columns of out float32 [B, D]."""
    layout = bags.layout
    features = np.flatnonzero(layout.columns >= 0)
    pooled = _bag_sums(bags, source)
    if (divisors := bags.divisors()) is not None:
        pooled = pooled / divisors
    parts = pooled.view(len(layout.features), bags.num_rows, layout.dim)
    if len(features) < len(layout.features):
        parts = parts[torch.from_numpy(features).to(parts.device)]
    out.index_copy_(
        1,
        _columns(layout, features, out.device),
        parts.transpose(0, 1).reshape(bags.num_rows, len(features) * layout.dim),
    )


def _bag_sums(bags: DeviceBags, source: TensorSource) -> Tensor:
    """float32 [F·B, dim]."""
    values = source.vectors.index_select(0, source.slots.index_select(0, bags.ids))
    if bags.factors is not None:
        values = values * bags.factors[:, None]
    return values if bags.bag_ends is None else segment_sums(values, bags.bag_ends, np.diff(bags.offsets))


def pool_backward(bags: DeviceBags, grad: Tensor) -> Tensor:
    """float32 [U, dim]: the gradients of the unique rows from grad float32 [B, D]."""
    layout = bags.layout
    features = np.flatnonzero((layout.columns >= 0) & layout.trained)
    parts = grad.index_select(1, _columns(layout, features, grad.device))
    parts = parts.view(bags.num_rows, len(features), layout.dim).transpose(0, 1)
    if len(features) < len(layout.features):  # the others have no part in it
        every = grad.new_zeros((len(layout.features), bags.num_rows, layout.dim))
        parts = every.index_copy_(0, torch.from_numpy(features).to(grad.device), parts.contiguous())
    of_bags = parts.reshape(len(layout.features) * bags.num_rows, layout.dim)
    if (divisors := bags.divisors()) is not None:
        of_bags = of_bags / divisors
    bag = bags.bag_of_ids()
    return _row_sums(bags, of_bags.index_select(0, bag.index_select(0, bags.order)))


def sequence_forward(bags: DeviceBags, source: TensorSource) -> Tensor:
    """float32 [n, dim]: a row for each id of the sequence features, feature after feature."""
    ids = torch.cat([bags.ids[:0], *(bags.ids[begin:end] for begin, end in sequence_ranges(bags))])
    return source.vectors.index_select(0, source.slots.index_select(0, ids))


def sequence_backward(bags: DeviceBags, grad: Tensor) -> Tensor:
    """float32 [U, dim] from grad float32 [n, dim] of the ids of the sequence features."""
    of_ids = grad.new_zeros((len(bags.query_ids), bags.layout.dim))
    first = 0
    for feature, (begin, end) in zip(bags.layout.sequences, sequence_ranges(bags), strict=True):
        if bags.layout.trained[feature]:
            of_ids[begin:end] = grad[first : first + end - begin]
        first += end - begin
    return segment_sums(of_ids.index_select(0, bags.order), bags.ends, bags.counts)


def _row_sums(bags: DeviceBags, terms: Tensor) -> Tensor:
    """The sums of terms float32 [nnz, dim], which stand in the order of the rows."""
    if bags.factors is not None:
        terms = terms * bags.factors.index_select(0, bags.order)[:, None]
    return segment_sums(terms, bags.ends, bags.counts)


def _columns(layout: GroupLayout, features: I64, device: torch.device) -> Tensor:
    """int64 [features · dim]: the columns of the output that belong to `features`, in their order."""
    columns = (layout.columns[features, None] + np.arange(layout.dim)).reshape(-1)
    return torch.from_numpy(columns).to(device, non_blocking=True)


class TorchPool(torch.autograd.Function):
    """(bags, sources, shape, times, *leaves) -> float32 `shape` [B, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        bags: tuple[DeviceBags, ...],
        sources: tuple[TensorSource, ...],
        shape: tuple[int, int],
        times: StepTimes,
        *leaves: Tensor,
    ) -> Tensor:
        ctx.bags, ctx.times = bags, times
        out = torch.empty(shape, dtype=torch.float32, device=leaves[0].device if leaves else None)
        for one, source in zip(bags, sources, strict=True):
            pool_forward(one, source, out)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with ctx.times.of("backward"):
            for one in ctx.bags:
                one.as_checked.check()
            pairs = zip(ctx.bags, ctx.needs_input_grad[4:], strict=True)
            return (None, None, None, None, *(pool_backward(one, grad) if wanted else None for one, wanted in pairs))


class TorchSequences(torch.autograd.Function):
    """(bags, source, times, leaf) -> float32 [n, dim]."""

    @staticmethod
    def forward(ctx: Any, bags: DeviceBags, source: TensorSource, times: StepTimes, leaf: Tensor) -> Tensor:
        ctx.bags, ctx.times = bags, times
        return sequence_forward(bags, source)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with ctx.times.of("backward"):
            ctx.bags.as_checked.check()
            return None, None, None, sequence_backward(ctx.bags, grad)
