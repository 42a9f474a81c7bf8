"""NumPy twin of `update.hpp`, bit for bit."""

from __future__ import annotations

import numpy as np

from headrace.embed.arrays import F32
from headrace.embed.optimizers import UpdateRule


def update_rows(rule: UpdateRule, rows: F32, grads: F32) -> None:
    """One step in place; rows float32 [n, dim + state], grads float32 [n, dim]."""
    dim = grads.shape[1]
    lr, eps = np.float32(rule.lr), np.float32(rule.eps)
    if rule.name == "sgd":
        rows[:, :dim] -= lr * grads
        return
    squares = np.zeros(len(rows), np.float32)
    for j in range(dim):
        squares = squares + grads[:, j] * grads[:, j]
    rows[:, dim] += squares / np.float32(dim)
    rows[:, :dim] -= (lr * grads) / (np.sqrt(rows[:, dim]) + eps)[:, None]
