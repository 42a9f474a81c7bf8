"""Rows that are taken out of a trained model: their keys are new again, and so are the places that they leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace
from headrace.indexer.indexed import ABSENT, IdColumn
from tests.support.criteo_text import write_lines

DIM, BATCH = 4, 25


def train_epoch(loader, stage):
    for batch in loader:
        stage(batch).square().sum().backward()
        stage.step(batch)


def all_columns(loader):
    """The ids of every table that the index holds."""
    rows = loader.index.rows_of_buckets()
    tables = np.unique(rows.tables).tolist()
    return [IdColumn(t, rows.ids[rows.tables == t], rows.missing[rows.tables == t]) for t in tables]


@pytest.mark.parametrize("mode", ["arena", "direct"])
def test_removed_rows_begin_anew(mode, tmp_path):
    write_lines(tmp_path / "train.txt", 300, seed=3, ids=40)
    schema = headrace.criteo_schema(dim=DIM, optimizer="rowwise_adagrad")
    torch.manual_seed(0)
    stage = headrace.EmbeddingStage(schema, lr=0.05, mode=mode)
    options = {"window": 7, "capacity": 3000, "timeout": 60, "verify_plan": True, "schema": schema}
    with headrace.DataLoader(tmp_path / "train.txt", BATCH, **options) as loader:
        train_epoch(loader, stage)
        columns = all_columns(loader)
        keep, gone = columns[::2], columns[1::2]
        kept = loader.index.lookup(keep).groups[0]
        uids = np.array([t.uid for t in schema.tables], np.uint32)

        def rows(group):
            tables = np.repeat(uids[list(group.tables)], np.diff(group.table_offsets))
            return stage.lookup_rows(0, group.locations, group.unique_ids, tables, group.missing)

        before = rows(kept)
        removed = loader.index.remove(gone).groups[0]
        assert len(loader.index) == len(before)
        stage.forget_rows(0, removed.locations)
        assert (loader.index.lookup(gone).groups[0].locations == ABSENT).all()
        back = loader.index.index(gone)
        assert back.groups[0].is_new.all()
        assert set(back.groups[0].locations.tolist()) == set(removed.locations.tolist())  # the places are taken again
        tables = np.repeat(uids[list(back.groups[0].tables)], np.diff(back.groups[0].table_offsets))
        start = stage.initial_rows(DIM, back.groups[0].unique_ids, tables, back.groups[0].missing)
        np.testing.assert_array_equal(rows(back.groups[0])[:, :DIM], start)
        np.testing.assert_array_equal(rows(kept), before)
        loader.index.undo_after(None)
        train_epoch(loader, stage)
        assert len(loader.index) == len(before) + len(removed.locations)


@pytest.mark.parametrize("mode", ["arena", "direct"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_batch_that_was_looked_up_before_is_refused(mode, begun, tmp_path):
    write_lines(tmp_path / "train.txt", 100, seed=3, ids=40)
    schema = headrace.criteo_schema(dim=DIM, optimizer="rowwise_adagrad")
    stage = headrace.EmbeddingStage(schema, mode=mode, initializer=headrace.Constant(value=0.5))
    options = {"window": 2, "capacity": 3000, "timeout": 60, "schema": schema}
    with headrace.DataLoader(tmp_path / "train.txt", BATCH, **options) as loader:
        train_epoch(loader, stage)
        old = list(loader)
        if begun:
            stage(old[0]).sum().backward()
            stage.step(old[0])
        held_out = headrace.DataLoader(tmp_path / "train.txt", BATCH, schema=schema, index=loader.index, train=False)
        with held_out:
            to_read = next(iter(held_out))
        stage.forget_rows(0, loader.index.remove(all_columns(loader)).groups[0].locations)
        after = loader.index.index([IdColumn(0, np.arange(10_000, 10_500, dtype=np.uint64))])  # takes the places
        loader.index.commit(after.ticket)
        before = stage.state_arrays()
        for use in (stage, stage.forward_sequences, stage.skip, stage):
            with pytest.raises(
                RuntimeError, match=r"looked up before stage\.forget_rows.*iterate over the loader anew"
            ):
                use(old[1 if begun else 0])
        with pytest.raises(RuntimeError, match=r"looked up before stage\.forget_rows"):
            stage.eval()(to_read)
        assert {k: v.tobytes() for k, v in stage.state_arrays().items()} == {k: v.tobytes() for k, v in before.items()}
        stage.train()
        train_epoch(loader, stage)
        with headrace.DataLoader(
            tmp_path / "train.txt", BATCH, schema=schema, index=loader.index, train=False
        ) as held_out:
            stage.eval()(next(iter(held_out)))


def test_batches_are_used_on_after_a_state_was_loaded(tmp_path):
    write_lines(tmp_path / "train.txt", 100, seed=3, ids=40)
    schema = headrace.criteo_schema(dim=DIM)
    stage = headrace.EmbeddingStage(schema)
    with headrace.DataLoader(tmp_path / "train.txt", BATCH, schema=schema, timeout=60) as loader:
        batches = list(loader)
        stage.load_state_dict(stage.state_dict())  # the index is as it was: so are the places
        for batch in batches:
            stage(batch).sum().backward()
            stage.step(batch)
    assert stage.num_steps == len(batches)
