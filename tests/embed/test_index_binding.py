"""One stage goes with one index: real loaders over two indexes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

import headrace
from headrace import DIT, DataLoader, EmbeddingStage, RowDatabase
from headrace.embed.table_file import export_table, import_rows
from headrace.formats.schema import Label, Schema, Sparse, Table
from headrace.ingest.adapters.rows_from import RowsFrom
from headrace.ingest.nodes.index import index_tables

SCHEMA = Schema(
    labels=(Label(name="y"),), sparse=(Sparse(name="a", encoding="uint64"),), tables=(Table(name="a", dim=2),)
)
OTHER = "is of another index than the rows of this stage.*index=loader.index of the first"


def loader(first_id, **options):
    """Of 8 rows, 4 a batch, with ids that count from `first_id`."""
    ids = pa.array(np.arange(first_id, first_id + 8, dtype=np.uint64))
    rows = RowsFrom([pa.table({"y": pa.array(np.zeros(8, np.float32)), "a": ids})], SCHEMA)
    return DataLoader(rows, 4, schema=SCHEMA, window=2, **options)


def train(stage, batches):
    for batch in batches:
        stage(batch).sum().backward()
        stage.step(batch)


def state_of(stage):
    return {name: array.tobytes() for name, array in stage.state_arrays().items()}


def test_indexes_are_told_apart_and_batches_know_theirs():
    first, second = loader(0), loader(0)
    assert first.index.serial != second.index.serial
    with first, loader(0, index=first.index, train=False) as scoring:
        assert {batch.index_serial for batch in [*first, *scoring]} == {first.index.serial}
        assert next(iter(first)).to("cpu").index_serial == first.index.serial


def test_a_snapshot_knows_nothing_of_it():
    tables = []
    for _ in range(2):
        with loader(0) as one:
            list(one)
            tables.append(one.index.snapshot())
    assert tables[0].equals(tables[1], check_metadata=True)


@pytest.mark.parametrize("mode", ["direct", "arena"])
class TestAnotherIndexIsRefused:
    @pytest.fixture
    def stage(self, mode):
        return EmbeddingStage(SCHEMA, mode=mode)

    def test_in_batches(self, stage):
        with loader(0) as first, loader(100) as second:
            train(stage, first)
            before = state_of(stage)
            batch = next(iter(second))
            for use in (stage, stage.skip):
                with pytest.raises(ValueError, match=f"this batch {OTHER}"):
                    use(batch)
            stage.eval()
            with pytest.raises(ValueError, match=f"this batch {OTHER}"):
                stage(batch)
            stage.train()
            assert state_of(stage) == before
            with loader(100, index=first.index) as third:
                train(stage, third)
        assert len(stage.state_arrays()["locations_0"]) == 16

    def test_in_all_that_takes_an_index(self, stage, tmp_path):
        with loader(0) as first, loader(100) as second:
            train(stage, first)
            list(second)
            model = torch.nn.Linear(2, 1)
            parts = {"loader_state": {}, "stage": stage, "model": model, "optimizer": None, "step": 1}
            for use in (
                lambda index: RowDatabase(stage, index),
                lambda index: export_table(stage, index, "a", tmp_path / "a.parquet"),
                lambda index: import_rows(stage, index, "a", [1], np.ones((1, 2), np.float32)),
                lambda index: headrace.save_run(tmp_path / "run", index=index, **parts),
            ):
                with pytest.raises(ValueError, match=OTHER):
                    use(second.index)
                use(first.index)

    def test_after_what_took_the_first_one(self, stage, tmp_path):
        with loader(0) as first, loader(100) as second:
            RowDatabase(stage, first.index)
            with pytest.raises(ValueError, match=OTHER):
                stage(next(iter(second)))

    def test_a_restored_run_goes_with_the_index_given(self, stage, tmp_path):
        model = torch.nn.Linear(2, 1)
        with loader(0) as first:
            train(stage, first)
            database = RowDatabase(stage, first.index)
            ticket = database.prefetch({"a": [3]})
            parts = {"stage": stage, "model": model, "optimizer": None}
            headrace.save_run(tmp_path / "run", loader_state=first.state_dict(), index=first.index, step=2, **parts)
            with DIT(index_tables(SCHEMA)) as again, loader(0, index=again, train=False) as scoring:
                headrace.load_run(tmp_path / "run").restore(index=again, **parts)
                stage.eval()
                outputs = [stage(batch) for batch in scoring]
                stage.train()
                assert torch.cat(outputs).shape == (8, 2)
                with pytest.raises(ValueError, match=OTHER):
                    stage(next(iter(first)))
                with pytest.raises(ValueError, match=f"this RowDatabase {OTHER}"):
                    database.prefetch({"a": [3]})
                with pytest.raises(RuntimeError, match="prefetch the ids again"):
                    database.pull(ticket)
                database.release(ticket)

    def test_a_loaded_state_goes_with_the_next_one(self, stage):
        with loader(0) as first, DIT(index_tables(SCHEMA)) as again:
            train(stage, first)
            again.restore(first.index.snapshot())
            stage.load_state_dict(stage.state_dict())
            with loader(100, index=again) as rest:
                train(stage, rest)
            with pytest.raises(ValueError, match=OTHER):
                stage(next(iter(first)))
