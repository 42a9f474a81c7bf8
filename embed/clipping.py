"""Gradient clipping over the rows of a stage and the parameters of a dense model together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from headrace.embed.arguments import check_number
from headrace.embed.stage import EmbeddingStage
from headrace.formats.checks import check_flag, check_type


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

    Over ranks it is the norm of the gradient of the mean over the global batch, the same on all ranks, each row counted
    once. All ranks call it, once a step, after the dense gradients were averaged. It sends the rows' gradients to their
    owners, where they are scaled; the step then applies them, and what ``stage.pending_leaves()`` show is not changed.
    """
    check_type("stage", stage, EmbeddingStage, "a headrace.EmbeddingStage; dense parameters come second")
    check_number("max_norm", max_norm)
    check_number("norm_type", norm_type)
    check_flag("error_if_nonfinite", error_if_nonfinite)
    if not isinstance(parameters, Iterable) or isinstance(parameters, (str, bytes, Mapping)):
        raise TypeError(f"parameters are tensors, as model.parameters(), not a {type(parameters).__name__}")
    dense = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for one in dense:
        check_type("each of parameters", one, Tensor, "a tensor, as model.parameters() gives them")
    if stage.over_ranks:
        return _clip_over_ranks(stage, dense, float(max_norm), float(norm_type), error_if_nonfinite)
    tensors = [*stage.pending_leaves(), *dense]
    return torch.nn.utils.clip_grad_norm_(tensors, max_norm, norm_type=norm_type, error_if_nonfinite=error_if_nonfinite)


def _clip_over_ranks(
    stage: EmbeddingStage, parameters: list[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> Tensor:
    grads = [p.grad for p in parameters if p.grad is not None]
    norms = [torch.linalg.vector_norm(grad.detach(), norm_type) for grad in grads]
    others = (
        float(torch.linalg.vector_norm(torch.stack([n.cpu().double() for n in norms]), norm_type)) if norms else 0.0
    )
    held, total = stage.hold_gradients(norm_type, others, max_norm=max_norm)
    if error_if_nonfinite and not math.isfinite(total):
        raise RuntimeError(f"the norm of order {norm_type} of all gradients is {total}, and cannot be clipped")
    factor = max_norm / (total + 1e-6)
    if not factor >= 1.0:  # NaN scales, as in torch
        held.scale(factor)
        for grad in grads:
            grad.mul_(factor)
    return torch.tensor(total, dtype=torch.float32)
