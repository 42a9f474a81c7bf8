"""Training on a folder that grows: the parameters are those of the same files, there from the start."""

from __future__ import annotations

import hashlib
import threading
import time

import numpy as np
import pytest
import torch

import headrace
from headrace.formats.growing import GrowingFolder
from tests.support.criteo_text import random_line
from tests.support.growing_folder import Writer, appear

BATCH, DIM = 25, 4


@pytest.fixture(scope="module")
def files():
    import random

    rng = random.Random(5)
    return [(f"part_{n}", "".join(random_line(rng, ids=40) + "\n" for _ in range(70)).encode()) for n in range(5)]


def train(data, **options):
    """(digest of all parameters, digests of the plans' runs, rows in the index)."""
    schema = headrace.criteo_schema(dim=DIM)
    torch.manual_seed(0)
    stage = headrace.EmbeddingStage(schema, lr=0.05, mode="arena")
    head = torch.nn.Linear(13 + stage.output_dim, 1)
    sgd = torch.optim.SGD(head.parameters(), lr=0.01)
    runs, rows = set(), []
    options = {"window": 50, "capacity": 3000, "timeout": 60, "verify_plan": True, "num_workers": 2, **options}
    with headrace.DataLoader(data, BATCH, schema=schema, **options) as loader:
        for batch in loader:
            sgd.zero_grad()
            logits = head(torch.cat([batch.dense, stage(batch)], dim=1)).squeeze(1)
            torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
            sgd.step()
            stage.step(batch)
            runs.add(batch.plan.run)
            rows.append(len(loader.index))
        locations = loader.index.snapshot().column("location").to_numpy()
    state = hashlib.sha256()
    for tensor in head.parameters():
        state.update(tensor.detach().numpy().tobytes())
    for array in stage.state_arrays(locations).values():
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest(), runs, rows


def test_parameters_do_not_depend_on_when_files_came(tmp_path, files):
    whole, live = tmp_path / "whole", tmp_path / "live"
    whole.mkdir()
    live.mkdir()
    for name, data in files:
        appear(whole, name, data)
    expected, runs, _ = train(whole)
    assert len(runs) == 1
    with Writer(live, files, pause_s=0.25):
        found, runs, rows = train(GrowingFolder(path=live, poll_s=0.01), idle_s=0.05)
    assert found == expected
    assert len(runs) > 1  # it idled, and was handed out
    assert rows == sorted(rows)  # ids that were never seen came in as they came


def test_a_loader_that_waits_for_a_file_closes_at_once(tmp_path, files):
    appear(tmp_path, *files[0])
    folder = GrowingFolder(path=tmp_path, poll_s=1000, max_idle_s=None)
    loader = headrace.DataLoader(folder, BATCH, schema=headrace.criteo_schema(), num_workers=2, window=4)
    batches = iter(loader)
    for _ in range(2):
        next(batches)  # handed out while the source waits (70 rows: the rest fills no batch yet)
    threading.Timer(0.2, loader.close).start()
    began = time.monotonic()
    with pytest.raises((headrace.NodeClosedError, RuntimeError)):
        next(batches)
    assert time.monotonic() - began < 60
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 10


def test_a_state_goes_on_in_a_folder_that_grew(tmp_path, files):
    def labels(batches):
        return [batch.labels.tolist() for batch in batches]

    schema = headrace.criteo_schema()
    for name, data in files[:2]:
        appear(tmp_path, name, data)
    folder = GrowingFolder(path=tmp_path, poll_s=0.01)
    with headrace.DataLoader(folder, BATCH, schema=schema, window=4) as loader:
        batches = iter(loader)
        found = labels(next(batches) for _ in range(4))
        state = loader.state_dict()
    for name, data in files[2:]:
        appear(tmp_path, name, data)
    appear(tmp_path, "_END", b"")
    with headrace.DataLoader(folder, BATCH, schema=schema, window=4) as loader:
        loader.load_state_dict(state)
        found += labels(loader)
        assert (
            loader.stats()["rows_in"]
            == 350 - state["pipeline"]["source"]["source"]["source"]["source"]["source"]["rows_in"]
        )
    with headrace.DataLoader(str(tmp_path), BATCH, schema=schema, window=4) as loader:
        assert labels(loader) == found
    (tmp_path / "part_0").unlink()
    with headrace.DataLoader(folder, BATCH, schema=schema, window=4) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match="the state is of other files"):
            next(iter(loader))
