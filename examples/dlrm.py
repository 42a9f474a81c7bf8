"""DLRM in plain PyTorch: bottom MLP, dot interaction, top MLP (Naumov et al., 2019, arXiv:1906.00091)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(sizes: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU between them (and behind the last one when asked)."""
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(before, after))
        if last_relu or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Logit of a click from dense values [B, n_dense] and pooled embeddings [B, n_sparse * dim]."""

    pairs: Tensor

    def __init__(
        self,
        num_dense: int,
        num_sparse: int,
        dim: int,
        *,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (128, 64),
    ) -> None:
        super().__init__()
        self.num_sparse = num_sparse
        self.dim = dim
        self.bottom = mlp([num_dense, *bottom, dim], last_relu=True)
        vectors = num_sparse + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)
        self.top = mlp([dim + vectors * (vectors - 1) // 2, *top, 1], last_relu=False)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        bottom = self.bottom(dense)  # [B, dim]
        vectors = torch.cat([bottom.unsqueeze(1), pooled.view(-1, self.num_sparse, self.dim)], dim=1)  # [B, 1 + F, dim]
        dots = torch.bmm(vectors, vectors.transpose(1, 2))  # [B, 1 + F, 1 + F]
        crossed = dots[:, self.pairs[0], self.pairs[1]]  # [B, pairs]
        logit: Tensor = self.top(torch.cat([bottom, crossed], dim=1)).squeeze(1)
        return logit
