"""DeepFM in plain PyTorch: a factorization machine and an MLP over the same embeddings (Guo et al., 2017,
arXiv:1703.04247)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dlrm import mlp


class DeepFM(nn.Module):
    """Logit of a click from dense values [B, n_dense] and pooled embeddings [B, n_sparse * dim].

    The last value of a row is its first-order weight, the `dim` - 1 before it are its factors: one row an id, as the
    model asks for, instead of a second table of single weights.
    """

    def __init__(self, num_dense: int, num_sparse: int, dim: int, *, hidden: Sequence[int] = (128, 64)) -> None:
        super().__init__()
        if dim < 2:
            raise ValueError(f"dim={dim}: a row is a first-order weight and at least one factor, so 2 or more")
        self.num_sparse = num_sparse
        self.dim = dim
        self.linear = nn.Linear(num_dense, 1)
        self.deep = mlp([num_dense + num_sparse * (dim - 1), *hidden, 1], last_relu=False)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        rows = pooled.view(-1, self.num_sparse, self.dim)  # [B, F, dim]
        factors, weights = rows[..., :-1], rows[..., -1]  # [B, F, dim - 1], [B, F]
        first = self.linear(dense).squeeze(1) + weights.sum(dim=1)  # [B]
        sums, squares = factors.sum(dim=1), factors.square().sum(dim=1)  # [B, dim - 1]
        second = (sums.square() - squares).sum(dim=1) / 2  # [B]: all products of two different features
        deep = self.deep(torch.cat([dense, factors.flatten(1)], dim=1)).squeeze(1)
        logit: Tensor = first + second + deep
        return logit
