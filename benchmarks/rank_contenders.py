"""What is measured on each rank: headrace, and the dense part alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from rank_dense import DIM, NUM_SPARSE, DensePart
from rank_streams import RankStream
from torch.nn.functional import binary_cross_entropy_with_logits
from torchdata.nodes import BaseNode

import headrace
from headrace.indexer.exchange.communicator import connect

LR = 0.01


@dataclass(frozen=True)
class Job:
    """What a rank trains on. `settings`: `window`, `hot_rows`, `levels` (1 or 2), `shared_memory`, `timeout_s`,
    `seed`."""

    stream: RankStream
    rank: int
    node_size: int
    settings: dict[str, Any]


class Contender(Protocol):
    def step(self) -> None:
        """One synchronous training step on the rank's next batch."""

    def payload(self) -> dict[str, int]:
        """Bytes sent to other nodes so far by purpose, as far as the contender counts them."""

    def parts(self) -> dict[str, float]:
        """Seconds so far of the parts of its steps, as far as it has them apart."""

    def close(self) -> None: ...


def dense_values(stream: RankStream, step: int, rank: int) -> torch.Tensor:
    """float32 [B, 13], as the loader makes them."""
    return torch.from_numpy(np.log1p(np.maximum(stream.dense[step, rank], 0)).T.astype(np.float32).copy())


class DenseAlone:
    """The dense part and its all-reduce, on pooled features that do not change but get gradients."""

    def __init__(self, job: Job) -> None:
        self._job, self._next = job, 0
        self._model = torch.nn.parallel.DistributedDataParallel(DensePart(job.settings["seed"]))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LR)
        batch_size = job.stream.labels.shape[2]
        self._pooled = torch.randn(batch_size, NUM_SPARSE * DIM).mul_(0.01).requires_grad_()

    def step(self) -> None:
        stream, step, rank = self._job.stream, self._next % self._job.stream.steps, self._job.rank
        self._next += 1
        self._optimizer.zero_grad()
        self._pooled.grad = None
        logits = self._model(dense_values(stream, step, rank), self._pooled)
        binary_cross_entropy_with_logits(logits, torch.from_numpy(stream.labels[step, rank].copy())).backward()
        self._optimizer.step()

    def payload(self) -> dict[str, int]:
        return {}

    def parts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is held."""


class StreamBlocks(BaseNode[headrace.RowBlock]):  # type: ignore[misc]
    """A rank's batches of a stream as row blocks in memory, over and over."""

    def __init__(self, job: Job, schema: headrace.Schema) -> None:
        super().__init__()
        self._blocks = [_block(job.stream, step, job.rank, schema) for step in range(job.stream.steps)]
        self._step = 0

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self._step = 0 if initial_state is None else int(initial_state["step"])

    def next(self) -> headrace.RowBlock:
        self._step += 1
        return self._blocks[(self._step - 1) % len(self._blocks)]

    def get_state(self) -> dict[str, Any]:
        return {"step": self._step}


def _block(stream: RankStream, step: int, rank: int, schema: headrace.Schema) -> headrace.RowBlock:
    columns = [pa.array(stream.labels[step, rank])]
    columns += [pa.array(column) for column in stream.dense[step, rank]]
    pairs = zip(stream.ids[step, rank], stream.valid[step, rank], strict=True)
    columns += [pa.array(ids, mask=None if valid.all() else ~valid) for ids, valid in pairs]
    data = pa.RecordBatch.from_arrays(columns, schema=schema.arrow_schema(labels=True))
    rows = headrace.SourceRange(0, step * data.num_rows, data.num_rows)
    return headrace.RowBlock(data, headrace.Source((f"rank {rank}",), (rows,)))


class Headrace:
    """The loader and the stage, with DistributedDataParallel around the dense part, as in the others."""

    def __init__(self, job: Job) -> None:
        settings = job.settings
        self._job = job
        schema = headrace.criteo_schema(dim=DIM, optimizer="rowwise_adagrad")
        self._communicator = connect("gloo", timeout_s=settings["timeout_s"], shared_memory=settings["shared_memory"])
        self._loader = headrace.DataLoader(
            StreamBlocks(job, schema),
            job.stream.labels.shape[2],
            schema=schema,
            communicator=self._communicator,
            shard=False,
            window=settings["window"],
            hot_rows=settings["hot_rows"],
            hot_every=settings["hot_every"],
            node_size=job.node_size if settings["levels"] == 2 else 1,
            timeout=settings["timeout_s"],
        )
        self._stage = headrace.EmbeddingStage(schema, lr=LR, num_threads=1, communicator=self._communicator)
        self._model = torch.nn.parallel.DistributedDataParallel(DensePart(settings["seed"]))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LR)
        self._batches: Iterator[headrace.Batch] = iter(self._loader)
        self._parts = dict.fromkeys(("batch", "rows", "dense", "gradients"), 0.0)

    def step(self) -> None:
        moments = [time.perf_counter()]
        batch = next(self._batches)
        moments.append(time.perf_counter())
        pooled = self._stage(batch)
        moments.append(time.perf_counter())
        self._optimizer.zero_grad()
        assert batch.labels is not None
        binary_cross_entropy_with_logits(self._model(batch.dense, pooled), batch.labels).backward()
        self._optimizer.step()
        moments.append(time.perf_counter())
        self._stage.step(batch)
        moments.append(time.perf_counter())
        for part, (begin, end) in zip(self._parts, pairwise(moments), strict=True):
            self._parts[part] += end - begin

    def parts(self) -> dict[str, float]:
        return dict(self._parts)

    def payload(self) -> dict[str, int]:
        """By purpose; what stays within the node is left out."""
        first = self._job.rank // self._job.node_size * self._job.node_size
        here = range(first, first + self._job.node_size)
        sent = self._communicator.bytes_sent()
        return {p: sum(n for peer, n in enumerate(to) if peer not in here) for p, to in sent.items()}

    def close(self) -> None:
        self._loader.close()
        dist.barrier()
        self._communicator.close()
