"""Rows that all ranks take out of their indexes: batches of before are refused on each, with nothing sent."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from headrace.indexer.exchange.simulated import run_ranks
from headrace.indexer.indexed import IdColumn
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema


def own_columns(index):
    rows = index.rows_of_buckets()
    tables = np.unique(rows.tables).tolist()
    return [IdColumn(t, rows.ids[rows.tables == t], rows.missing[rows.tables == t]) for t in tables]


@pytest.mark.parametrize("mode", ["arena", "direct"])
def test_batches_that_were_looked_up_before_are_refused_on_all_ranks(tmp_path, mode):
    write_lines(tmp_path / "train.txt", 120, seed=3, ids=40)
    schema = make_schema()

    def train(stage, loader):
        for batch in loader:
            stage(batch).square().sum().backward()
            stage.step(batch)

    def rank(communicator):
        stage = headrace.EmbeddingStage(schema, lr=0.05, mode=mode, num_threads=1, communicator=communicator)
        options = {"window": 2, "capacity": 3000, "timeout": 60, "schema": schema, "communicator": communicator}
        with headrace.DataLoader(tmp_path / "train.txt", 10, **options) as loader:
            train(stage, loader)
            old = list(loader)
            removed = loader.index.remove(own_columns(loader.index))
            stage.forget_rows(0, removed.groups[0].locations)
            assert stage.stores[0].num_written == 0
            for use in (stage, stage.skip, stage):
                with pytest.raises(RuntimeError, match=r"looked up before stage\.forget_rows"):
                    use(old[0])
            train(stage, loader)
            stage.flush()
            return stage.stores[0].num_written, len(loader.index)

    parts = run_ranks(2, rank, timeout_s=60.0)
    assert all(written == known > 0 for written, known in parts)
