"""The loader's own plans, run by a thread beside the trainer, and by torch's operators."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from tests.support.criteo_text import write_lines

ROWS, BATCH, DIM = 600, 25, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("loop") / "train.txt"
    write_lines(path, ROWS, seed=5, ids=40)
    return path


def train(data, *, window, capacity, **options):
    """All rows after two epochs, and the stage's stats."""
    schema = headrace.criteo_schema(dim=DIM, optimizer="sgd")
    stage = headrace.EmbeddingStage(schema, lr=0.05, **{"mode": "arena", **options})
    with headrace.DataLoader(data, BATCH, schema=schema, window=window, capacity=capacity, timeout=60) as loader:
        for _ in range(2):
            for batch in loader:
                (stage(batch) * batch.labels[:, None]).square().sum().backward()
                stage.step(batch)
        locations = loader.index.snapshot().column("location").to_numpy()
    rows = stage.state_arrays(locations)["rows_0"]
    stage.close()
    return rows, stage.stats()


@pytest.fixture(scope="module")
def capacity(data):
    """Of an arena in which each step's rows just fit beside some of the next one's."""
    with headrace.DataLoader(data, BATCH, schema=headrace.criteo_schema(dim=DIM), window=0) as loader:
        return max(g.num_unique for batch in loader for g in batch.groups) + 30


@pytest.fixture(scope="module")
def expected(data, capacity):
    return train(data, window=0, capacity=capacity, mode="direct")[0]


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("window", [0, 1, 7])
def test_rows_are_those_of_direct_mode(data, capacity, expected, window, overlap, kernels):
    rows, stats = train(data, window=window, capacity=capacity, overlap=overlap, kernels=kernels)
    assert np.array_equal(rows, expected)  # sgd: torch's operators give the same bits
    assert stats["steps"] == 2 * ROWS / BATCH
    assert stats["rows_written_back"] > 100
