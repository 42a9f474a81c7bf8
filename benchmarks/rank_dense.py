"""The dense part that all contenders train: a small DLRM, 13-64 below, 64+351-64-1 above, with few operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dlrm import mlp

DIM = 64
NUM_SPARSE = 26


class Products(torch.autograd.Function):
    """[B, F, F] of [B, F, dim]: the products of all pairs of vectors. Their gradient takes one product, where that of
    ``bmm(v, v^T)`` takes two and a sum."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return torch.bmm(vectors, vectors.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        return torch.bmm(grads[0] + grads[0].transpose(1, 2), vectors)


class DensePart(nn.Module):
    """Logits [B] of dense values [B, 13] and pooled features [B, 26 * dim]."""

    pairs: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        vectors = NUM_SPARSE + 1
        self.bottom = mlp([13, DIM], last_relu=True)
        self.top = mlp([DIM + vectors * (vectors - 1) // 2, 64, 1], last_relu=False)
        row, column = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", row * vectors + column, persistent=False)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        bottom = self.bottom(dense)  # [B, dim]
        vectors = torch.cat([bottom, pooled], dim=1).view(len(dense), NUM_SPARSE + 1, DIM)
        dots: Tensor = Products.apply(vectors)  # type: ignore[no-untyped-call]
        crossed = dots.flatten(1).index_select(1, self.pairs)  # [B, pairs]
        logits: Tensor = self.top(torch.cat([bottom, crossed], dim=1)).squeeze(1)
        return logits
