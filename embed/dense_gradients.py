"""Gradients of the dense part of a model over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor

from headrace.embed.arguments import check_integer
from headrace.embed.dense_start import compare, not_compared
from headrace.indexer.exchange.agreement import refuse_differences
from headrace.indexer.exchange.communicator import Communicator
from headrace.ingest.batch import Batch

_CALL = ("run", "step", "parameters", "numbers in them", "parameters to compare")
"""What the ranks tell each other of a call, in this order."""


def average_gradients(
    communicator: Communicator, parameters: Iterable[Tensor], batch: Batch, *, check_every: SupportsIndex = 0
) -> None:
    """Make each parameter's ``.grad`` that of the mean over the global batch, the same bits on every rank.

    Between ``backward`` of a loss that is the mean over the rank's own rows, and the step; on all ranks, also where the
    batch has no rows (their gradients, which may be None or NaN, do not count). With ranks of equal size it is what
    DistributedDataParallel does, which cannot weigh ranks of different sizes. A parameter that got no gradient on some
    ranks counts as zeros there; one that got none on any has None on all, so that no optimizer touches it.

    Parameters that are met for the first time must have the same shapes, types and values on all ranks; with
    `check_every` they are compared again after every so many steps. RankMismatchError, on all ranks, if they are not,
    and where ranks call it for another step or for other parameters.
    """
    every = check_integer("check_every", check_every, least=0)
    if batch.ranks is None and communicator.world_size > 1:
        raise ValueError(
            "average_gradients() over ranks of a batch of one process: give DataLoader and EmbeddingStage the "
            "communicator, too"
        )
    wanted = [p for p in parameters if p.requires_grad]
    if batch.ranks is None or communicator.world_size == 1:
        return
    step, what = batch.ranks.now, f"average_gradients of step {batch.ranks.now.step}"
    fresh = not_compared(communicator, wanted)
    if every and step.step and step.step % every == 0:
        fresh = list(range(len(wanted)))
    channel = communicator.channel("dense")
    call = np.array([step.run, step.step, len(wanted), sum(p.numel() for p in wanted), len(fresh)], np.int64)
    calls = np.zeros((communicator.world_size, len(call)), np.int64)
    posted = channel.post(dict.fromkeys(range(len(calls)), call), dict(enumerate(calls)), what)
    calls[communicator.rank] = call
    counts = step.share > 0 or not step.global_rows  # without any rows there are still zeros, not None
    flat = _weighted(wanted, step.share, counts=counts)
    posted.wait()
    told = [dict(zip(_CALL, one, strict=True)) for one in calls.tolist()]
    refuse_differences(told, "average_gradients is called differently on the ranks")
    if fresh:
        compare(communicator, channel, wanted, fresh, what)
    total = torch.from_numpy(channel.all_reduce(flat, what))
    communicator.activity.did(what)
    start, found = 0, total[len(total) - len(wanted) :].tolist()
    for p, ranks in zip(wanted, found, strict=True):
        if not ranks:
            p.grad = None
            start += p.numel()
            continue
        mean = total[start : start + p.numel()].reshape(p.shape).to(p)
        start += p.numel()
        if p.grad is None:
            p.grad = mean
        else:
            p.grad.copy_(mean)


def _weighted(parameters: list[Tensor], share: float, *, counts: bool) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """All gradients, one after the other, times the rank's share of the global batch, zeros where it has none; then a
    number a parameter: 1 where it has a gradient that `counts`."""
    size = sum(p.numel() for p in parameters)
    flat = np.zeros(size + len(parameters), np.float32)
    if counts:
        flat[size:] = [p.grad is not None for p in parameters]
    if not share:
        return flat
    start = 0
    for p in parameters:
        if p.grad is not None:
            flat[start : start + p.numel()] = p.grad.detach().reshape(-1).float().cpu().numpy()
        start += p.numel()
    flat[:size] *= np.float32(share)
    return flat
