"""Steps that an optimizer counts: as many on every rank as in one process, also without rows or ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace.formats.schema import Label, Schema, Sparse, Table
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.rank_training import rows_by_key

SCHEMA = Schema(
    labels=(Label(name="y"),),
    sparse=(Sparse(name="a", multi_hot=True, encoding="int64"),),
    tables=(Table(name="a", dim=4, optimizer="adam"),),
)
IDS = [[1, 2], [3], [], [], [1], [2, 3], [], [], [5]]
"""Rows of global batches of two: the second and the fourth have no ids, and the last has one row."""


def train(communicator, batch_size, *, drops_at=None):
    data = pa.table({"y": pa.array([1.0] * len(IDS), pa.float32()), "a": pa.array(IDS, pa.list_(pa.int64()))})
    data = data.cast(SCHEMA.arrow_schema(labels=True)).to_batches()
    stage = headrace.EmbeddingStage(SCHEMA, lr=0.1, weight_decay=0.01, num_threads=1, communicator=communicator)
    rows = headrace.RowsFrom(data, SCHEMA)
    with headrace.DataLoader(rows, batch_size, schema=SCHEMA, window=2, communicator=communicator) as loader:
        for number, batch in enumerate(loader):
            out = stage(batch)
            if batch.num_rows:
                out.square().sum(dim=1).mean().backward()
            if number == drops_at:
                stage.optimizer().zero_grad()
            stage.optimizer().step()
        return stage.num_steps, rows_by_key(SCHEMA, loader.index, stage)


def test_batches_without_ids_and_ranks_without_rows():
    steps, reference = train(None, 2)
    parts = run_ranks(2, lambda communicator: train(communicator, 1))
    assert [part[0] for part in parts] == [steps] * 2 == [5, 5]
    merged = {**parts[0][1], **parts[1][1]}
    assert merged.keys() == reference.keys()
    for key, row in reference.items():
        np.testing.assert_allclose(merged[key], row, rtol=1e-5, atol=1e-6)


def test_a_step_without_the_gradients_that_it_should_have_is_refused():
    """It would decay the momenta and the weights of the rows; in one process it does nothing."""
    with pytest.raises(RuntimeError, match=r"gave no row a gradient of .*: over ranks .* call stage.skip\(batch\)"):
        run_ranks(2, lambda communicator: train(communicator, 1, drops_at=0))
    steps, _ = train(None, 2, drops_at=0)
    assert steps == 4
