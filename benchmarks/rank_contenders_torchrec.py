"""TorchRec's DistributedModelParallel and TrainPipelineSparseDist over gloo, table-wise or row-wise, on given row
numbers: it has no index, so that ids are numbered beforehand and nothing of that is in its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rank_contenders import LR, Job, dense_values
from rank_dense import DIM, DensePart
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

_FEATURES = [f"C{c + 1}" for c in range(26)]
_TYPES = {"table_wise": ShardingType.TABLE_WISE, "row_wise": ShardingType.ROW_WISE}


@dataclass
class TorchRecBatch(Pipelineable):
    dense: Tensor
    sparse: KeyedJaggedTensor
    labels: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> TorchRecBatch:
        return self

    def record_stream(self, stream: Any) -> None:
        """There are no streams on the CPU."""

    def pin_memory(self) -> TorchRecBatch:
        return self


class Model(nn.Module):
    """(loss, logits) of a batch."""

    def __init__(self, cardinalities: list[int], seed: int) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(name=f"t_{name}", embedding_dim=DIM, num_embeddings=n, feature_names=[name])
            for name, n in zip(_FEATURES, cardinalities, strict=True)
        ]
        self.embeddings = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.dense = DensePart(seed)

    def forward(self, batch: TorchRecBatch) -> tuple[Tensor, Tensor]:
        pooled = self.embeddings(batch.sparse).values()
        logits = self.dense(batch.dense, pooled)
        return binary_cross_entropy_with_logits(logits, batch.labels), logits.detach()


class Sharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """Offers one kind of sharding; on the CPU the original offers row-wise not at all."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [self._kind]


class TorchRec:
    def __init__(self, job: Job, *, sharding: str) -> None:
        self._job = job
        device, world_size = torch.device("cpu"), job.stream.labels.shape[1]
        model = Model(job.stream.cardinalities, job.settings["seed"])
        apply_optimizer_in_backward(RowWiseAdagrad, model.embeddings.parameters(), {"lr": LR})
        topology = Topology(world_size=world_size, local_world_size=job.node_size, compute_device="cpu")
        sharder = Sharder(_TYPES[sharding].value)
        plan = EmbeddingShardingPlanner(topology=topology).collective_plan(
            model, [sharder], torch.distributed.GroupMember.WORLD
        )
        parallel = DistributedModelParallel(module=model, device=device, plan=plan, sharders=[sharder])
        dense = {k: v for k, v in parallel.named_parameters() if ".dense." in k or k.startswith("dense.")}
        optimizer = KeyedOptimizerWrapper(dense, lambda params: torch.optim.SGD(params, lr=LR))
        self._pipeline = TrainPipelineSparseDist(parallel, optimizer, device)
        self._batches = self._all_batches()

    def _all_batches(self) -> Iterator[TorchRecBatch]:
        """The rank's batches, over and over."""
        stream, rank = self._job.stream, self._job.rank
        lengths = torch.ones(26 * stream.labels.shape[2], dtype=torch.int32)
        while True:
            for step in range(stream.steps):
                values = torch.from_numpy(stream.rows[step, rank].reshape(-1).astype(np.int64))
                sparse = KeyedJaggedTensor(keys=_FEATURES, values=values, lengths=lengths)
                labels = torch.from_numpy(stream.labels[step, rank].copy())
                yield TorchRecBatch(dense_values(stream, step, rank), sparse, labels)

    def step(self) -> None:
        self._pipeline.progress(self._batches)

    def payload(self) -> dict[str, int]:
        """It counts nothing."""
        return {}

    def parts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is held."""
