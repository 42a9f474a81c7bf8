"""Optimizers of embedding rows, applied once to each touched row of a step; a row is [vector w (dim) | state].

With g the sum of the gradients of all occurrences of the row, and ``g += weight_decay * w`` where weight decay is not 0
(as in torch, but on touched rows only):

=================== ============== =====================================================================================
`sgd`               no state       ``w -= lr * g``
`rowwise_adagrad`   one float s    ``s += mean_j(g_j ** 2)``, then ``w -= (lr / (sqrt(s) + eps)) * g``: the mean of the
                                   squares, not the square of the mean, as in FBGEMM
`adagrad`           s [dim]        ``s += g ** 2``, then ``w -= (lr * g) / (sqrt(s) + eps)``, as `torch.optim.Adagrad`
                                   without decay of the rate
`adam`              m, v [dim]     ``m += (1 - beta1) * (g - m)``, ``v += (1 - beta2) * (g ** 2 - v)``, then
                                   ``w -= r * (m / (sqrt(v) + eps))``, ``r = lr * sqrt(1 - beta2 ** t) / (1 - beta1 **
                                   t)``, as `torch.optim.SparseAdam`: t counts the optimizer's steps from 1, also those
                                   in which this row had no part
=================== ============== =====================================================================================

in float32; the squares are added up in 16 lanes, that of column j in lane j % 16, and the lanes in halves; `r`,
``1 - beta1`` and ``1 - beta2`` are computed in float64 and rounded. Eps is outside the root everywhere, and 1e-8 if not
given (torch: 1e-10 in Adagrad, 1e-8 in SparseAdam). State starts at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.embed import _rows
from headrace.embed.arguments import check_integer, check_number
from headrace.embed.arrays import F32
from headrace.embed.initializer import FLOAT32_MAX
from headrace.formats.schema import OptimizerName

_KIND: dict[OptimizerName, int] = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": 2, "adam": 3}


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """An optimizer with its hyper-parameters of one step, the `step`-th (from 1 on) of the optimizer.

    `eps` plays no part in ``sgd``, `betas` and `step` only in ``adam``.
    """

    name: OptimizerName
    lr: float
    eps: float = 1e-8
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    step: int = 1

    def __post_init__(self) -> None:
        check_lr(self.lr)
        check_eps(self.eps)
        check_weight_decay(self.weight_decay)
        check_betas(self.betas)
        check_integer("step", self.step, least=1)

    @property
    def native(self) -> tuple[int, float, float, float, float, float]:
        """(kind, step size, eps, weight decay, 1 - beta1, 1 - beta2) as the native code takes them."""
        beta1, beta2 = self.betas
        return _KIND[self.name], self.step_size, self.eps, self.weight_decay, 1.0 - beta1, 1.0 - beta2

    @property
    def step_size(self) -> float:
        """`lr`, with Adam's bias corrections."""
        if self.name != "adam":
            return self.lr
        beta1, beta2 = self.betas
        return self.lr * math.sqrt(1.0 - beta2**self.step) / (1.0 - beta1**self.step)


def check_lr(lr: float) -> float:
    """`lr` as a float; must be finite and not negative."""
    return _check_not_negative("lr", lr)


def check_weight_decay(weight_decay: float) -> float:
    """`weight_decay` as a float; must be finite and not negative."""
    return _check_not_negative("weight_decay", weight_decay)


def check_eps(eps: float) -> float:
    """`eps` as a float; must be finite and above 0 in float32, else a row with zero gradients would become NaN."""
    number = check_number("eps", eps)
    if not number <= FLOAT32_MAX or not np.float32(number) > 0:
        raise ValueError(f"eps={eps!r} is not a finite float32 above 0")
    return number


def check_betas(betas: tuple[float, float]) -> tuple[float, float]:
    """`betas` as two floats in [0, 1)."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"betas={betas!r} is not a pair of numbers")
    first, second = (check_number("betas", beta) for beta in betas)
    if not (0.0 <= first < 1.0 and 0.0 <= second < 1.0):
        raise ValueError(f"betas={betas!r} are not at least 0 and below 1")
    return first, second


def _check_not_negative(name: str, value: float) -> float:
    number = check_number(name, value)
    if not 0 <= number <= FLOAT32_MAX:
        raise ValueError(f"{name}={value!r} is not a finite float32 of at least 0")
    return number


def update_rows(rule: UpdateRule, rows: F32, grads: F32) -> None:
    """One step in place; rows float32 [n, dim + state], grads float32 [n, dim]."""
    _rows.update_rows(rows, grads, rule.native)
