"""The optimizers of `optimizers.py` by torch's operators, on rows in slots of a device.

One operator an operation, in the order of `update.hpp`, and no fused multiply-add: on the CPU ``sgd`` has the bits of
the native kernel, and so have, without weight decay, the states of ``adagrad`` and ``adam``. Their vectors agree to
rounding, as torch's square root on the CPU is not exact (its last bit differs in one of six), and ``rowwise_adagrad``
does, as a row's squares are added up in torch's order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.embed.optimizers import UpdateRule


@torch.no_grad()
def update_slots(vectors: Tensor, state: Tensor, slots: Tensor, grads: Tensor, rule: UpdateRule) -> None:
    """One step in place on vectors float32 [n, dim] and state float32 [n, state] of the rows in `slots` int64 [u]
    (unique), with grads float32 [u, dim]."""
    _, lr, eps, weight_decay, keep1, keep2 = rule.native
    w = vectors.index_select(0, slots)
    g = grads + w * weight_decay if weight_decay else grads
    if rule.name == "sgd":
        vectors.index_copy_(0, slots, w - g * lr)
        return
    s = state.index_select(0, slots)
    if rule.name == "rowwise_adagrad":
        s = s + (g * g).sum(dim=1, keepdim=True) / g.shape[1]
        w = w - g * (lr / (s.sqrt() + eps))
    elif rule.name == "adagrad":
        s = s + g * g
        w = w - (g * lr) / (s.sqrt() + eps)
    else:
        m, v = s.chunk(2, dim=1)
        m = m + (g - m) * keep1
        v = v + (g * g - v) * keep2
        s = torch.cat([m, v], dim=1)
        w = w - (m / (v.sqrt() + eps)) * lr
    vectors.index_copy_(0, slots, w)
    state.index_copy_(0, slots, s)
