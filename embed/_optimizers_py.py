"""NumPy twin of `update.hpp`, bit for bit."""

from __future__ import annotations

import numpy as np

from headrace.embed.arrays import F32
from headrace.embed.optimizers import UpdateRule

LANES = 16


def update_rows(rule: UpdateRule, rows: F32, grads: F32) -> None:
    """One step in place; rows float32 [n, dim + state], grads float32 [n, dim]."""
    dim = grads.shape[1]
    _, *numbers = rule.native
    lr, eps, weight_decay, keep1, keep2 = (np.float32(number) for number in numbers)
    vectors, first, second = rows[:, :dim], rows[:, dim : 2 * dim], rows[:, 2 * dim : 3 * dim]
    g = grads + weight_decay * vectors if weight_decay else grads
    if rule.name == "sgd":
        vectors -= lr * g
    elif rule.name == "rowwise_adagrad":
        rows[:, dim] += _sums_of_squares(g) / np.float32(dim)
        vectors -= (lr / (np.sqrt(rows[:, dim]) + eps))[:, None] * g
    elif rule.name == "adagrad":
        first += g * g
        vectors -= (lr * g) / (np.sqrt(first) + eps)
    else:
        first += keep1 * (g - first)
        second += keep2 * (g * g - second)
        vectors -= lr * (first / (np.sqrt(second) + eps))


def _sums_of_squares(g: F32) -> F32:
    lanes = np.zeros((len(g), LANES), np.float32)
    for j in range(g.shape[1]):
        lanes[:, j % LANES] += g[:, j] * g[:, j]
    half = LANES // 2
    while half > 0:
        lanes[:, :half] += lanes[:, half : 2 * half]
        half //= 2
    return lanes[:, 0]
