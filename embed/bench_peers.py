"""What users have at hand for a training step of embedding rows, with plain SGD.

Their ids are numbered densely beforehand, which is in their favour.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.formats.schema import Schema
from headrace.ingest.batch import Batch

Step = Callable[[int], Sequence[float]]
"""Does the step of batch i; the seconds of its parts."""

DenseInputs = Sequence[Sequence[tuple[Tensor, Tensor]]]
"""For each batch and feature (ids int64 from 0 on, offsets int64 [B])."""


class Peer(Protocol):
    """One table a feature, features all pooled by sum."""

    def forward(self, i: int) -> Tensor:
        """float32 [B, F * dim] of batch i."""

    def backward(self, out: Tensor, grad: Tensor) -> None:
        """From the gradient of the output to updated rows."""

    def tables(self) -> list[Tensor]:
        """Copies of the rows float32 [rows, dim] of each feature."""


def peer_steps(schema: Schema, batches: Sequence[Batch], grads: Sequence[Tensor], *, lr: float) -> dict[str, Step]:
    """The step of each peer that is installed, with the gradient grads[i] of the output of batch i."""
    inputs, sizes = dense_inputs(schema, batches)
    dim = schema.groups[0].dim
    peers: dict[str, Peer] = {"torch_embedding_bag": TorchEmbeddingBags(inputs, sizes, dim, lr=lr)}
    if find_spec("torchrec") and find_spec("fbgemm_gpu"):
        peers["torchrec_fused"] = TorchRecFused(inputs, sizes, dim, lr=lr)
    return {name: _timed(peer, grads) for name, peer in peers.items()}


def _timed(peer: Peer, grads: Sequence[Tensor]) -> Step:
    def step(i: int) -> Sequence[float]:
        begin = time.perf_counter()
        peer.backward(peer.forward(i), grads[i])
        return (time.perf_counter() - begin,)

    return step


def dense_inputs(schema: Schema, batches: Sequence[Batch]) -> tuple[list[list[tuple[Tensor, Tensor]]], list[int]]:
    """Inputs as :data:`DenseInputs`, and the rows of each feature's table."""
    inputs: list[list[tuple[Tensor, Tensor]]] = [[] for _ in batches]
    sizes = []
    for f in range(len(schema.sparse)):
        raw, cuts = [], []
        for batch in batches:
            group = batch.groups[0]
            offsets = group.offsets[f * batch.num_rows : (f + 1) * batch.num_rows + 1]
            query_ids = group.query_ids[int(offsets[0]) : int(offsets[-1])].numpy()
            # a location is as good an id as any, and the missing value has one too
            raw.append(group.locations.numpy()[query_ids])
            cuts.append(offsets[:-1] - offsets[0])
        known, dense = np.unique(np.concatenate(raw), return_inverse=True)
        sizes.append(len(known))
        ends = np.cumsum([len(one) for one in raw])[:-1]
        for i, part in enumerate(np.split(dense.astype(np.int64), ends)):
            inputs[i].append((torch.from_numpy(np.ascontiguousarray(part)), cuts[i]))
    return inputs, sizes


class TorchEmbeddingBags:
    """`nn.EmbeddingBag(sparse=True)` a feature and `torch.optim.SGD`."""

    def __init__(self, inputs: DenseInputs, sizes: Sequence[int], dim: int, *, lr: float) -> None:
        self._inputs = inputs
        self._bags = [torch.nn.EmbeddingBag(size, dim, mode="sum", sparse=True) for size in sizes]
        self._optimizer = torch.optim.SGD([bag.weight for bag in self._bags], lr=lr)

    def forward(self, i: int) -> Tensor:
        pairs = zip(self._bags, self._inputs[i], strict=True)
        return torch.cat([bag(ids, offsets) for bag, (ids, offsets) in pairs], dim=1)

    def backward(self, out: Tensor, grad: Tensor) -> None:
        self._optimizer.zero_grad()
        out.backward(grad)  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def tables(self) -> list[Tensor]:
        return [bag.weight.detach().clone() for bag in self._bags]


class TorchRecFused:
    """TorchRec's FusedEmbeddingBagCollection: the update is part of its backward."""

    def __init__(self, inputs: DenseInputs, sizes: Sequence[int], dim: int, *, lr: float) -> None:
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        self._names = [f"feature_{f}" for f in range(len(sizes))]
        tables = [
            EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=size, feature_names=[name])
            for name, size in zip(self._names, sizes, strict=True)
        ]
        self._module: Any = FusedEmbeddingBagCollection(
            tables, optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": lr}, device=torch.device("cpu")
        )
        self._jagged = []
        for one in inputs:
            lengths = [torch.diff(offsets, append=torch.tensor([len(ids)])) for ids, offsets in one]
            values = torch.cat([ids for ids, _ in one])
            self._jagged.append(KeyedJaggedTensor(keys=self._names, values=values, lengths=torch.cat(lengths)))

    def forward(self, i: int) -> Tensor:
        out: Tensor = self._module(self._jagged[i]).values()
        return out

    def backward(self, out: Tensor, grad: Tensor) -> None:
        out.backward(grad)  # type: ignore[no-untyped-call]

    def tables(self) -> list[Tensor]:
        state = self._module.state_dict()
        return [state[f"embedding_bags.{name}.weight"].detach().clone() for name in self._names]
