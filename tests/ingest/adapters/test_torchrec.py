"""Batches in TorchRec's train pipelines and modules: by a stand-in, and with TorchRec where it is installed."""

from __future__ import annotations

import abc
import sys
import types

import numpy as np
import pytest
import torch

import headrace
from headrace.ingest import batch_forms
from tests.support.loaders import BATCH, ROWS, loader_of

SCHEMA = headrace.criteo_schema(dim=4, optimizer="sgd")


class Progress:
    """How TrainPipelineSparseDist takes batches (torchrec 1.8.0, train_pipeline/utils.py): the assertion on the type,
    ``to`` by keywords, ``record_stream``, two batches ahead of the one that is given."""

    def __init__(self, interface, stream):
        self.interface, self.stream, self.queue = interface, stream, []

    def progress(self, batches):
        while len(self.queue) < 3 and (batch := next(batches, None)) is not None:
            assert isinstance(batch, (torch.Tensor, self.interface)), f"{type(batch)} must implement Pipelineable"
            self.queue.append(batch.to(device=torch.device("cpu"), non_blocking=True))
        if not self.queue:
            raise StopIteration
        self.queue[0].record_stream(self.stream)
        return self.queue.pop(0)


@pytest.fixture
def interface(monkeypatch):
    """torchrec.streamable.Pipelineable, imported by somebody else after headrace."""
    module = types.ModuleType("torchrec.streamable")

    class Pipelineable(abc.ABC):
        @abc.abstractmethod
        def to(self, device, non_blocking): ...

        @abc.abstractmethod
        def record_stream(self, stream): ...

    module.Pipelineable = Pipelineable
    monkeypatch.setitem(sys.modules, "torchrec.streamable", module)
    return Pipelineable


def test_a_pipeline_of_its_kind_takes_batches(data, interface, monkeypatch):
    recorded = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append((tensor, stream)))
    stage = headrace.EmbeddingStage(SCHEMA, mode="arena")
    with loader_of(data, SCHEMA) as loader:
        pipeline, batches, rows = Progress(interface, "a stream"), iter(loader), 0
        while True:
            try:
                batch = pipeline.progress(batches)
            except StopIteration:
                break
            rows += batch.num_rows
            stage(batch).sum().backward()
            stage.step(batch)
    assert rows == ROWS
    tensors = 2 + sum(isinstance(t, torch.Tensor) for g in batch.groups for t in vars(g).values())
    assert len(recorded) == tensors * -(-ROWS // BATCH)
    assert {stream for _, stream in recorded} == {"a stream"}


def test_pinned_batches_are_batches_of_pinned_tensors(data, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # needs an accelerator
    with loader_of(data, SCHEMA) as loader:
        batch = next(iter(loader))
    pinned = batch.pin_memory()
    assert pinned.plan is batch.plan
    assert pinned.dense.data_ptr() != batch.dense.data_ptr()
    assert torch.equal(pinned.groups[0].query_ids, batch.groups[0].query_ids)


def test_without_torchrec_nothing_is_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrec.streamable", None)
    batch_forms.join_torchrec()


@pytest.fixture
def torchrec():
    return pytest.importorskip("torchrec", reason="TorchRec is not installed here; `make bench-peers` installs it")


class TestWithTorchrec:
    def arena_of(self, torchrec, batch, stage, capacity):
        """An unchanged EmbeddingBagCollection whose one table is the arena, the rows of the batch in their slots."""
        config = torchrec.EmbeddingBagConfig(
            name="arena", embedding_dim=4, num_embeddings=capacity, feature_names=list(batch.feature_names)
        )
        bags = torchrec.EmbeddingBagCollection(tables=[config], device=torch.device("cpu"))
        (group,) = batch.groups
        keys = (getattr(group, f).numpy() for f in ("unique_ids", "unique_tables", "missing"))
        with torch.no_grad():
            bags.embedding_bags["arena"].weight[group.slots] = torch.from_numpy(stage.initial_rows(4, *keys))
        return bags

    def test_slots_into_a_collection_over_the_arena(self, torchrec, data):
        stage = headrace.EmbeddingStage(SCHEMA)
        with loader_of(data, SCHEMA) as loader:
            batch = next(iter(loader))
        bags = self.arena_of(torchrec, batch, stage, batch.plan.groups[0].capacity)
        pooled = bags(batch.to_kjt(ids="slot")).values()
        torch.testing.assert_close(pooled, stage(batch), rtol=0, atol=0)

    def test_raw_ids(self, torchrec, data):
        with loader_of(data, SCHEMA) as loader:
            batch = next(iter(loader))
        kjt = batch.to_kjt(ids="raw", missing_id=-1)
        assert kjt.keys() == [s.name for s in SCHEMA.sparse]
        (group,) = batch.groups
        raw = np.where(group.missing, -1, group.unique_ids.numpy().astype(np.int64))
        assert kjt.values().tolist() == raw[group.query_ids.numpy()].tolist()

    def test_the_train_pipeline_gives_the_losses_of_a_plain_loop(self, torchrec, data, tmp_path):
        from torchrec.distributed import DistributedModelParallel
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

        losses, sharder = [[], []], EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.1})
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            for kind in range(2):
                with loader_of(data, SCHEMA) as loader:
                    model = SlotModel(torchrec, loader_capacity=4000)
                    if kind:
                        model = DistributedModelParallel(model, device=torch.device("cpu"), sharders=[sharder])
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"), execute_all_batches=True)
                    batches = iter(loader)
                    while True:
                        try:
                            losses[kind].append(
                                pipeline.progress(batches) if kind else plain(model, optimizer, batches)
                            )
                        except StopIteration:
                            break
        finally:
            torch.distributed.destroy_process_group()
        assert len(losses[0]) == -(-ROWS // BATCH)
        torch.testing.assert_close(*map(torch.stack, losses))


class SlotModel(torch.nn.Module):
    """Embeddings by slot and a linear head. (No rows are moved: the same rows stay in their slots.)"""

    def __init__(self, torchrec, loader_capacity):
        super().__init__()
        torch.manual_seed(0)
        names = [s.name for s in SCHEMA.sparse]
        config = torchrec.EmbeddingBagConfig(
            name="arena", embedding_dim=4, num_embeddings=loader_capacity, feature_names=names,
            init_fn=lambda weight: torch.nn.init.constant_(weight, 0.1),
        )  # fmt: skip
        self.bags = torchrec.EmbeddingBagCollection(tables=[config], device=torch.device("cpu"))
        self.head = torch.nn.Linear(13 + 4 * len(names), 1)

    def forward(self, batch):
        pooled = self.bags(batch.to_kjt(ids="slot")).values()
        logits = self.head(torch.cat([batch.dense, pooled], dim=1)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, loss.detach()


def plain(model, optimizer, batches):
    batch = next(batches)
    optimizer.zero_grad()
    loss, out = model(batch)
    loss.backward()
    optimizer.step()
    return out
