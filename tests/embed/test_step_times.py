"""Where the seconds of steps go."""

from __future__ import annotations

import time

import pytest
import torch

from headrace.embed.chunk_store import ChunkStore
from headrace.embed.stage import EmbeddingStage
from headrace.embed.step_times import PARTS, StepTimes
from headrace.formats.schema import Schema, Sparse, Table

ONE = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=2, optimizer="sgd"),))


@pytest.fixture
def batches(kit):
    index = kit.ToyIndex()
    ids = [[1, 2], [3, 4], [5, 6], [1, 2]]
    made = [kit.make_batch(ONE, {"a": [[i] for i in some]}, index) for some in ids]
    return kit.plan_batches(made, window=1, spare=0)


def train(stage, batches):
    for batch in batches:
        stage(batch).sum().backward()
        stage.step(batch)
    stage.flush()
    return stage.stats()


def test_before_the_first_step_there_is_no_share():
    stats = EmbeddingStage(ONE, mode="arena").stats()
    assert (stats["steps"], stats["elapsed_s"], stats["trainer_wait_share"]) == (0, 0.0, None)
    assert stats["step_s"] == dict.fromkeys(PARTS, None)


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("overlap", [False, True])
def test_all_parts_of_all_steps_are_counted(batches, overlap, kernels):
    stats = train(EmbeddingStage(ONE, mode="arena", overlap=overlap, kernels=kernels), batches)
    assert (stats["steps"], stats["moves_beside"]) == (4, overlap)
    assert (stats["rows_fetched"], stats["rows_written_back"]) == (8, 4)
    assert all(stats["step_s"][part] > 0 for part in PARTS)
    assert 0 < stats["trainer_wait_share"] <= 1
    apart = PARTS[:4] if overlap else PARTS
    assert 4 * sum(stats["step_s"][part] for part in apart) <= stats["elapsed_s"]


def test_the_share_is_of_waiting_for_rows(batches, monkeypatch):
    """A slow fetch is waited for; overlapped with a slow model it is not."""
    read = ChunkStore.read

    def slow(self, *args, **kwargs):
        time.sleep(0.05)
        read(self, *args, **kwargs)

    monkeypatch.setattr(ChunkStore, "read", slow)
    shares = {}
    for overlap in (False, True):
        stage = EmbeddingStage(ONE, mode="arena", overlap=overlap)
        for batch in batches:
            out = stage(batch)
            time.sleep(0.1)  # the model
            out.sum().backward()
            stage.step(batch)
        shares[overlap] = stage.stats()["trainer_wait_share"]
        assert stage.stats()["step_s"]["fetch"] >= 0.05
    assert shares[True] < shares[False]  # of four fetches the first alone is waited for


def test_evaluation_is_not_counted(batches):
    stage = EmbeddingStage(ONE, mode="arena", overlap=False)
    before = train(stage, batches)
    stage.eval()
    with torch.no_grad():
        stage(batches[0])
    assert stage.stats() == before


def test_parts_add_up():
    times = StepTimes(moves_beside=True)
    for _ in range(2):
        with times.of("update"):
            time.sleep(0.01)
    times.begin_step()
    times.end_step()
    times.end_step()
    assert 0.01 <= times.report()["step_s"]["update"] < 1
