"""DCN V2 in plain PyTorch: a cross network beside a deep one (Wang et al., 2021, arXiv:2008.13535)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dlrm import mlp


class CrossNetwork(nn.Module):
    """x_{l+1} = x_0 * (W_l x_l + b_l) + x_l over vectors [B, width]."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, first: Tensor) -> Tensor:
        x = first
        for layer in self.layers:
            x = first * layer(x) + x
        return x


class DCN(nn.Module):
    """Logit of each row [B] from its pooled embeddings [B, width]: both networks side by side."""

    def __init__(self, width: int, *, cross_layers: int = 2, deep: Sequence[int] = (128, 64)) -> None:
        super().__init__()
        self.cross = CrossNetwork(width, cross_layers)
        self.deep = mlp([width, *deep], last_relu=True)
        self.top = nn.Linear(width + deep[-1], 1)

    def forward(self, pooled: Tensor) -> Tensor:
        logit: Tensor = self.top(torch.cat([self.cross(pooled), self.deep(pooled)], dim=1)).squeeze(1)
        return logit
