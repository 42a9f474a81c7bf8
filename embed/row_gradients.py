"""Gradients of rows that wait for an optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from headrace.embed.arrays import F32, I64, Bool, host_array
from headrace.embed.row_keys import RowKeys

SumRows = Callable[[Tensor, I64, I64], Tensor]
"""See :meth:`headrace.embed.kernels.Kernels.sum_rows`."""


@dataclass(frozen=True, eq=False)
class RowGradients:
    """n rows of one group, each once, and their gradients.

    `leaf` float32 [n, dim] stands for the rows in autograd and in the parameter groups of the optimizer: ``leaf.grad``
    is the gradient, or None; its values are NaN and never read. `slots` int64 [n] is where the plan of the batch has
    put the rows in the arena, None if that is not known. `lasts`: the keys are not in memory of a batch, whose owner
    may use it for something else once another batch goes forward.
    """

    keys: RowKeys
    leaf: Tensor
    slots: I64 | None = None
    lasts: bool = False

    def lasting(self) -> RowGradients:
        """These rows, where no plan's slots and no batch's memory are known any more."""
        return self if self.lasts else RowGradients(self.keys.copied(), self.leaf, lasts=True)

    @property
    def grad(self) -> F32 | None:
        """The gradients as a contiguous array in host memory (no copy if they are that), or None."""
        return None if self.leaf.grad is None else host_array(self.leaf.grad)


def leaf_of(num_rows: int, dim: int, *, trained: bool = True, device: torch.device | None = None) -> Tensor:
    """A leaf that takes no memory; `trained` False collects no gradients."""
    return _nan(device).expand(num_rows, dim).requires_grad_(trained)


@cache
def _nan(device: torch.device | None) -> Tensor:
    """What all leaves of a device are views of: they have no values that anybody reads."""
    return torch.full((1, 1), float("nan"), device=device)


def with_gradients(keys: RowKeys, grad: Tensor, slots: I64 | None = None) -> RowGradients:
    """Rows with a gradient float32 [n, dim]."""
    leaf = leaf_of(grad.shape[0], grad.shape[1], device=grad.device)
    leaf.grad = grad
    return RowGradients(keys, leaf, slots)


def aliased(rows: RowGradients) -> RowGradients:
    """The gradients of `rows`, the same memory, with a leaf of their own."""
    grad = rows.leaf.grad
    if grad is None:
        raise ValueError("rows without a gradient")
    return with_gradients(rows.keys, grad, rows.slots)


def added(first: RowGradients, second: RowGradients, sum_rows: SumRows) -> RowGradients:
    """The rows of both, each once, with gradients; that of a row in both is that of `first` plus that of `second`."""
    keys = first.keys.joined(second.keys)
    grads = torch.cat([rows.leaf.grad for rows in (first, second) if rows.leaf.grad is not None])
    _, where, row_of = np.unique(keys.locations, return_index=True, return_inverse=True)
    ends = np.cumsum(np.bincount(row_of, minlength=len(where)))
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    return with_gradients(keys.take(where), sum_rows(grads, np.argsort(row_of, kind="stable"), offsets))


def rows_where(rows: RowGradients, wanted: Bool) -> RowGradients:
    """The rows where `wanted` bool [n] is True, with their gradients."""
    grad = rows.leaf.grad
    if grad is None:
        raise ValueError("rows without a gradient")
    slots = None if rows.slots is None else rows.slots[wanted]
    return with_gradients(rows.keys.take(wanted), grad[torch.from_numpy(wanted).to(grad.device)], slots)
