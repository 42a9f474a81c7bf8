"""Gradient clipping over the rows of a stage and the parameters of a dense model together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headrace.embed.stage import EmbeddingStage


def clip_grad_norm_(
    stage: EmbeddingStage,
    parameters: Iterable[Tensor] = (),
    max_norm: float = 1.0,
    *,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients down in place so that their norm is at most `max_norm`; the norm before, a scalar tensor.

    As :func:`torch.nn.utils.clip_grad_norm_` with dense embedding gradients: that of a row is the sum over its
    occurrences, in all batches since the last step, and rows that no batch touched add nothing. Call it between
    ``backward`` and the step, and after ``scaler.unscale_`` of both optimizers if there is a GradScaler.
    """
    if stage.over_ranks:
        raise NotImplementedError("over ranks the norm of all gradients is not known before the step")
    tensors = [*stage.pending_leaves(), *([parameters] if isinstance(parameters, Tensor) else parameters)]
    return torch.nn.utils.clip_grad_norm_(tensors, max_norm, norm_type=norm_type, error_if_nonfinite=error_if_nonfinite)
