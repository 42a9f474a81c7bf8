"""Rows that are replaced in the middle of an epoch over ranks: nothing that was sent or copied before is used after."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from headrace.embed.row_keys import RowKeys
from headrace.embed.slot_table import PlanError
from headrace.indexer.exchange.errors import RankStandstillError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, make_schema, rows_by_key

GLOBAL_BATCH = 20
SAVED, REPLACED = 2, 6
"""Steps."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("replaced") / "train.txt"
    write_lines(path, 240, seed=3, ids=60)
    return path


class Loads:
    def __init__(self, index):
        self.saved, self.index = None, index

    def before(self, stage, step):
        if step == SAVED:
            self.saved = stage.state_dict()
        if step == REPLACED:
            stage.load_state_dict(self.saved)

    def between(self, stage, batch, step): ...


class LoadsTwice(Loads):
    """And a forward of the same batch before it, whose gradients were clipped."""

    def between(self, stage, batch, step):
        if step == REPLACED:
            headrace.clip_grad_norm_(stage, [], 1e-3)
            stage.load_state_dict(self.saved)
            loss_of(stage, batch).backward()


def write(stage, index):
    """Every row that was trained is another."""
    stage.flush()
    known = index.rows_of_buckets()
    tables = np.array([table.uid for table in stage.schema.tables], np.uint32)[known.tables]
    keys = RowKeys(known.locations, known.ids, tables, known.missing)
    keys = keys.take(stage.stores[0].is_written(keys.locations))
    rows = stage.lookup_rows(0, *keys)
    half = len(rows) // 2  # in two calls
    for at in (np.arange(half), np.arange(half, len(rows))):
        stage.write_rows(0, keys.take(at), np.float32(0.5) - rows[at])


class Writes(Loads):
    def before(self, stage, step):
        if step == REPLACED:
            write(stage, self.index)


class WritesBeforeTheStep(Loads):
    """Between forward and step: the gradients are of the rows before, the update is of those after."""

    def before(self, stage, step): ...

    def between(self, stage, batch, step):
        if step == REPLACED:
            write(stage, self.index)


def loss_of(stage, batch):
    return stage(batch).square().sum(1).mean()


def train(data, communicator, program, *, schema=None, stage_options=None, **options):
    schema = schema or make_schema("sgd")
    size = 1 if communicator is None else communicator.world_size
    stage = headrace.EmbeddingStage(schema, lr=0.05, num_threads=1, communicator=communicator, **(stage_options or {}))
    options = {"window": 3, "capacity": 4000, "timeout": 60, "schema": schema, **options}
    with headrace.DataLoader(data, GLOBAL_BATCH // size, communicator=communicator, **options) as loader:
        does = program(loader.index)
        for step, batch in enumerate(loader):
            does.before(stage, step)
            loss_of(stage, batch).backward()
            does.between(stage, batch, step)
            stage.step(batch)
        return {"rows": rows_by_key(schema, loader.index, stage), "dense": []}


HOT = {"hot_rows": 60, "hot_every": 4, "stage_options": {"check_replicas_every": 1}}


@pytest.mark.parametrize("program", [Loads, LoadsTwice, Writes, WritesBeforeTheStep])
@pytest.mark.parametrize(
    ("size", "options"), [(2, {}), (2, HOT), (4, {**HOT, "node_size": 2})], ids=["cold", "hot", "two levels"]
)
def test_the_rows_are_those_of_one_process(data, program, size, options):
    expected = train(data, None, program)
    undisturbed = train(data, None, WritesBeforeTheStep if program is not WritesBeforeTheStep else Loads)
    assert any((expected["rows"][key] != row).any() for key, row in undisturbed["rows"].items())  # it does something
    assert_equal_to_reference(run_ranks(size, lambda c: train(data, c, program, **options)), expected)


@pytest.mark.parametrize("program", [Writes, WritesBeforeTheStep])
def test_arenas(data, program):
    expected = train(data, None, program)
    options = {**HOT, "stage_options": {"check_replicas_every": 1, "mode": "arena"}}
    assert_equal_to_reference(run_ranks(2, lambda c: train(data, c, program, **options)), expected)


def test_arenas_that_a_state_has_emptied(data):
    """The plans of the epoch are over, on all ranks alike; the loader is iterated anew, and training goes on."""
    schema = make_schema("sgd")

    def work(communicator):
        stage = headrace.EmbeddingStage(schema, lr=0.05, num_threads=1, mode="arena", communicator=communicator)
        options = {"window": 3, "capacity": 4000, "timeout": 60, "schema": schema, "communicator": communicator}
        with headrace.DataLoader(data, 10, hot_rows=60, hot_every=4, **options) as loader:
            batches = iter(loader)
            for step in range(REPLACED):
                batch = next(batches)
                if step == SAVED:
                    saved = stage.state_dict()
                loss_of(stage, batch).backward()
                stage.step(batch)
            stage.load_state_dict(saved)
            batch = next(batches)
            for _ in range(2):
                with pytest.raises(PlanError, match="after the arenas were emptied in the middle of the run"):
                    stage(batch)
            steps = stage.num_steps
            for batch in loader:
                loss_of(stage, batch).backward()
                stage.step(batch)
            return stage.num_steps - steps

    assert run_ranks(2, work) == [12, 12]


def test_a_state_that_one_rank_alone_loads(data):
    """Rows that were sent ahead would be given up by one rank, and taken for others' by the other."""

    def work(communicator):
        schema = make_schema("sgd")
        stage = headrace.EmbeddingStage(schema, num_threads=1, communicator=communicator)
        options = {"window": 3, "timeout": 60, "schema": schema, "communicator": communicator}
        saved = stage.state_dict()
        with headrace.DataLoader(data, 4, **options) as loader:
            for step, batch in enumerate(loader):
                stage(batch).sum().backward()
                stage.step(batch)
                if step == 3:
                    stage.flush()
                    if communicator.rank == 0:
                        stage.load_state_dict(saved)

    with pytest.raises(RankStandstillError, match=r"waits for the replacing of rows \(all ranks call load_state_dict"):
        run_ranks(2, work)


def test_nothing_is_told_before_an_epoch(data):
    """A rank that loads a state, or sets rows, before it trains waits for nobody."""

    def work(communicator):
        stage = headrace.EmbeddingStage(make_schema("sgd"), num_threads=1, communicator=communicator)
        if communicator.rank == 0:
            stage.load_state_dict(stage.state_dict())
        communicator.barrier()
        return sum(communicator.bytes_sent().get("replaced", [0]))

    assert run_ranks(2, work) == [0, 0]
