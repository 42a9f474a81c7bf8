"""Gradients of the dense part of a model over ranks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from headrace.indexer.exchange.communicator import Communicator
from headrace.ingest.batch import Batch


def average_gradients(communicator: Communicator, parameters: Iterable[Tensor], batch: Batch) -> None:
    """Make each parameter's ``.grad`` that of the mean over the global batch, the same bits on every rank.

    Between ``backward`` of a loss that is the mean over the rank's own rows, and the step; on all ranks, also where the
    batch has no rows (their gradients, which may be None or NaN, do not count). With ranks of equal size it is what
    DistributedDataParallel does, which cannot weigh ranks of different sizes.
    """
    if batch.ranks is None and communicator.world_size > 1:
        raise ValueError(
            "average_gradients() over ranks of a batch of one process: give DataLoader and EmbeddingStage the "
            "communicator, too"
        )
    wanted = [p for p in parameters if p.requires_grad]
    if batch.ranks is None or communicator.world_size == 1 or not wanted:
        return
    step = batch.ranks.now
    flat = np.zeros(sum(p.numel() for p in wanted), np.float32)
    starts = np.cumsum([0, *(p.numel() for p in wanted)])
    if step.share:
        for start, p in zip(starts, wanted, strict=False):
            if p.grad is not None:
                flat[start : start + p.numel()] = p.grad.detach().reshape(-1).float().cpu().numpy()
        flat *= np.float32(step.share)
    total = torch.from_numpy(communicator.channel("dense").all_reduce(flat, f"dense gradients of step {step.step}"))
    for start, p in zip(starts, wanted, strict=False):
        mean = total[start : start + p.numel()].reshape(p.shape).to(p)
        if p.grad is None:
            p.grad = mean
        else:
            p.grad.copy_(mean)
