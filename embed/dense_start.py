"""Whether the parameters of the dense part begin alike on all ranks, since ranks that differ would train on in silence.

A parameter is compared when it is first met: where gradients are averaged, or a run is saved. It is known by what it
is (an object, held weakly), not by the list or the generator that it comes in.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from headrace.indexer.exchange.channel import Channel
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.exchange.errors import RankMismatchError, rank_names

_LIMIT = 1 << 26
"""Bytes in which a rank describes its parameters: enough for half a million."""

_REMEDY = (
    "build the model alike on all ranks (torch.manual_seed(0), the same number on all, right before it is built), or "
    "load one state_dict() on all of them; if it has trained already, its gradients were not averaged: call "
    "average_gradients(ranks, model.parameters(), batch) on all ranks before each step"
)

_seen: weakref.WeakKeyDictionary[Communicator, dict[int, weakref.ref[Tensor]]] = weakref.WeakKeyDictionary()


def not_compared(communicator: Communicator, parameters: Sequence[Tensor]) -> list[int]:
    """Positions of the parameters that have not been compared over these ranks; those without values are left out."""
    seen = _seen.get(communicator, {})
    known = [(found := seen.get(id(p))) is not None and found() is p for p in parameters]
    return [i for i, (p, is_known) in enumerate(zip(parameters, known, strict=True)) if not is_known and not is_lazy(p)]


def compare(
    communicator: Communicator, channel: Channel, parameters: Sequence[Tensor], positions: Sequence[int], what: str
) -> None:
    """On all ranks: RankMismatchError, the same on all, unless the parameters at `positions` are equal, bit for bit.

    It names the first parameter that differs, and on which ranks.
    """
    mine = [[i, list(parameters[i].shape), str(parameters[i].dtype), _digest(parameters[i])] for i in positions]
    told = [json.loads(data) for data in channel.all_gather_bytes(json.dumps(mine).encode(), what, limit=_LIMIT)]
    _refuse(told)
    seen = _seen.setdefault(communicator, {})
    for dead in [key for key, found in seen.items() if found() is None]:
        del seen[dead]
    seen.update((id(parameters[i]), weakref.ref(parameters[i])) for i in positions)


def _refuse(told: Sequence[list[Any]]) -> None:
    counts = [len(one) for one in told]
    if len(set(counts)) > 1:
        raise RankMismatchError(f"the ranks have dense models of their own: {_values(counts, 'parameters')}: {_REMEDY}")
    for number in range(counts[0]):
        one = [rank[number] for rank in told]
        if all(other == one[0] for other in one):
            continue
        index, shape = one[0][0], one[0][1]
        forms = [f"shape {o[1]} and {o[2].removeprefix('torch.')}" for o in one]
        if len(set(forms)) > 1 or any(o[0] != index for o in one):
            said = f"parameter {index} has {_values(forms)}"
        else:
            said = f"parameter {index}, of shape {shape}, has {_sides([o[3] for o in one])}"
        raise RankMismatchError(f"the dense part of the model differs between the ranks: {said}: {_REMEDY}")


def _values(values: Sequence[object], unit: str = "") -> str:
    """ "shape [3] on rank 0, shape [4] on ranks 1, 2"."""
    ranks = _ranks_by_value(values)
    return ", ".join(f"{value} {unit}".strip() + f" on {rank_names(where)}" for value, where in ranks.items())


def _sides(digests: Sequence[str]) -> str:
    first, *others = _ranks_by_value(digests).values()
    if len(others) == len(digests) - 1 > 1:
        return "other values on each rank"
    return " and ".join(f"other values on {rank_names(ranks)}" for ranks in others) + f" than on {rank_names(first)}"


def _ranks_by_value(values: Sequence[Any]) -> dict[Any, list[int]]:
    ranks: dict[Any, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks


def _digest(parameter: Tensor) -> str:
    data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().data, digest_size=16).hexdigest()
