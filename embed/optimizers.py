"""Optimizers of embedding rows, applied once to each touched row of a step; a row is [vector (dim) | state].

- ``sgd`` (no state): ``w -= lr * g``
- ``rowwise_adagrad`` (one float s): ``s += mean_j(g_j ** 2)``, then ``w -= (lr * g) / (sqrt(s) + eps)``: the mean of
  the squares, not the square of the mean, and eps outside the root, as in FBGEMM

in float32; the sum of squares runs in the order of j. `g` is the sum of the gradients of all occurrences of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.embed import _rows
from headrace.embed.arguments import check_number
from headrace.embed.arrays import F32
from headrace.embed.initializer import FLOAT32_MAX
from headrace.formats.schema import OptimizerName

_KIND: dict[OptimizerName, int] = {"sgd": 0, "rowwise_adagrad": 1}


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """An optimizer with its hyper-parameters of one step; `eps` plays no part in ``sgd``."""

    name: OptimizerName
    lr: float
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_lr(self.lr)
        check_eps(self.eps)

    @property
    def native(self) -> tuple[int, float, float]:
        """(kind, lr, eps) as the native code takes them."""
        return _KIND[self.name], self.lr, self.eps


def check_lr(lr: float) -> float:
    """`lr` as a float; must be finite and not negative."""
    number = check_number("lr", lr)
    if not 0 <= number <= FLOAT32_MAX:
        raise ValueError(f"lr={lr!r} is not a finite float32 of at least 0")
    return number


def check_eps(eps: float) -> float:
    """`eps` as a float; must be finite and above 0 in float32, else a row with zero gradients would become NaN."""
    number = check_number("eps", eps)
    if not number <= FLOAT32_MAX or not np.float32(number) > 0:
        raise ValueError(f"eps={eps!r} is not a finite float32 above 0")
    return number


def update_rows(rule: UpdateRule, rows: F32, grads: F32) -> None:
    """One step in place; rows float32 [n, dim + state], grads float32 [n, dim]."""
    _rows.update_rows(rows, grads, *rule.native)
