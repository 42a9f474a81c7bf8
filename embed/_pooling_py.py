"""NumPy twin of `pool.hpp`, bit for bit."""

from __future__ import annotations

import numpy as np

from headrace.embed.arrays import F32
from headrace.embed.pooling import Bags


def pool_forward(bags: Bags, rows: F32, out: F32) -> None:
    """Twin of :func:`headrace.embed.pooling.pool_forward`."""
    dim = bags.layout.dim
    for f, column in enumerate(bags.layout.columns.tolist()):
        for b in range(len(out)):
            if column < 0:
                continue
            begin, end = bags.offsets[f * len(out) + b], bags.offsets[f * len(out) + b + 1]
            terms = [_weighted(bags, p, rows[bags.query_ids[p]]) for p in range(begin, end)]
            total = _in_order(terms, dim)
            if bags.layout.mean[f] and end > begin:
                total = total / np.float32(end - begin)
            out[b, column : column + dim] = total


def pool_backward(bags: Bags, grad: F32) -> F32:
    """Twin of :func:`headrace.embed.pooling.pool_backward`."""
    dim, num_rows = bags.layout.dim, len(grad)
    out = np.zeros((bags.num_unique, dim), np.float32)
    bag_of = np.repeat(np.arange(len(bags.offsets) - 1), np.diff(bags.offsets))
    for u in range(bags.num_unique):
        terms = []
        for p in bags.positions[bags.position_offsets[u] : bags.position_offsets[u + 1]].tolist():
            f, b = divmod(int(bag_of[p]), num_rows)
            column = int(bags.layout.columns[f])
            if column < 0 or not bags.layout.trained[f]:
                continue
            term = _weighted(bags, p, grad[b, column : column + dim])
            if bags.layout.mean[f]:
                term = term / np.float32(bags.offsets[bag_of[p] + 1] - bags.offsets[bag_of[p]])
            terms.append(term)
        out[u] = _in_order(terms, dim)
    return out


def _weighted(bags: Bags, position: int, values: F32) -> F32:
    if bags.weights is None:
        return values
    scaled: F32 = values * bags.weights[position]
    return scaled


def _in_order(terms: list[F32], dim: int) -> F32:
    if not terms:
        return np.zeros(dim, np.float32)
    total: F32 = terms[0].copy()
    for term in terms[1:]:
        total = total + term
    return total
