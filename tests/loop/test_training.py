"""The whole loop: parameters do not depend on window, capacity, hot rows, threads or mode, and equal torch's."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

import headrace
from tests.support.criteo_text import write_lines

ROWS, BATCH, DIM = 600, 25, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("loop") / "train.txt"
    write_lines(path, ROWS, seed=3, ids=40)
    return path


def train(data, *, mode="arena", optimizer="rowwise_adagrad", epochs=2, **options):
    """(digest of all parameters, digests of the plans, rows in the index)."""
    options = {"window": 7, "capacity": 3000, "timeout": 60, "verify_plan": True, **options}
    schema = headrace.criteo_schema(dim=DIM, optimizer=optimizer)
    torch.manual_seed(0)
    stage = headrace.EmbeddingStage(schema, lr=0.05, mode=mode)
    head = torch.nn.Linear(13 + stage.output_dim, 1)
    sgd = torch.optim.SGD(head.parameters(), lr=0.01)
    plans = []
    with headrace.DataLoader(data, BATCH, schema=schema, **options) as loader:
        for _ in range(epochs):
            for batch in loader:
                sgd.zero_grad()
                logits = head(torch.cat([batch.dense, stage(batch)], dim=1)).squeeze(1)
                torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
                sgd.step()
                stage.step(batch)
                plans.append(batch.plan.digest())
        locations = loader.index.snapshot().column("location").to_numpy()
    state = hashlib.sha256()
    for tensor in head.parameters():
        state.update(tensor.detach().numpy().tobytes())
    for array in stage.state_arrays(locations).values():
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest(), plans, len(locations)


@pytest.fixture(scope="module")
def expected(data):
    return train(data, mode="direct", window=0, num_workers=1)


def smallest_capacity(data) -> int:
    schema = headrace.criteo_schema(dim=DIM)
    with headrace.DataLoader(data, BATCH, schema=schema, window=0) as loader:
        return max(g.num_unique for batch in loader for g in batch.groups)


@pytest.mark.parametrize("window", [0, 1, 2, 7, 50, 10_000])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_windows_and_threads(data, expected, window, num_workers):
    assert train(data, window=window, num_workers=num_workers)[0] == expected[0]


@pytest.mark.parametrize("hot_rows", [0, 10, "auto"])
@pytest.mark.parametrize("spare", [0, 1, 100, 5000])
def test_capacities_and_hot_rows(data, expected, spare, hot_rows):  # L116, P85
    capacity = smallest_capacity(data) + spare
    digest, _, rows = train(data, capacity=capacity, hot_rows=hot_rows)
    assert (digest, rows) == (expected[0], expected[2])


def test_plans_are_equal_for_any_number_of_threads(data):  # P74
    assert train(data, num_workers=1)[1] == train(data, num_workers=2)[1]


def test_sgd_too(data):
    assert train(data, optimizer="sgd", mode="direct")[0] == train(data, optimizer="sgd", capacity=800)[0]


def test_a_wrong_parameter_would_be_seen(data, expected):
    assert train(data, epochs=1)[0] != expected[0]
