"""When a training loop is told that it trains no rows, and when it is not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from headrace.embed.row_database import RowDatabase
from headrace.embed.stage import EmbeddingStage
from headrace.embed.step_warnings import MANY_STEPS
from headrace.formats.schema import Schema, Sparse, Table
from headrace.indexer.dit import DIT
from headrace.ingest.nodes.index import index_tables

SCHEMA = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=2, optimizer="sgd"),))


@pytest.fixture
def batch(kit):
    return kit.plan_batches([kit.make_batch(SCHEMA, {"a": [[1], [2]]}, kit.ToyIndex())])[0]


class Loop:
    """Steps of a stage; whether the last one told something."""

    def __init__(self, batch, *, through_database=False):
        self.batch, self.stage = batch, EmbeddingStage(SCHEMA, lr=1.0)
        self.database = RowDatabase(self.stage, DIT(index_tables(SCHEMA))) if through_database else None

    def evaluates(self):
        self.stage.eval()(self.batch)
        self.stage.train()

    def trains(self):
        if self.database is None:
            self.stage(self.batch).sum().backward()
        else:
            ticket = self.database.prefetch({"a": [7]})
            self.database.push(ticket, {"a": np.ones((1, 2), np.float32)})
            self.database.release(ticket)
        assert not self.steps()

    def steps(self):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.stage.optimizer().step()
        return bool(told)

    def steps_of_nothing(self):
        self.evaluates()
        return self.steps()


@pytest.fixture(params=[False, True], ids=["stage", "database"])
def loop(request, batch):
    return Loop(batch, through_database=request.param)


def test_the_first_step_of_a_loop_that_never_trained(loop):
    assert loop.steps_of_nothing()
    assert not any(loop.steps_of_nothing() for _ in range(3 * MANY_STEPS))  # once


def test_many_in_a_row_of_a_loop_that_has_trained(loop):
    """As many as the docs say, not fewer: some may be the rest of an accumulation."""
    loop.trains()
    assert [loop.steps_of_nothing() for _ in range(17)] == [False] * 15 + [True, False]


def test_a_step_that_trains_begins_the_count_anew(loop):
    loop.trains()
    assert not any(loop.steps_of_nothing() for _ in range(MANY_STEPS - 1))
    loop.trains()
    assert not any(loop.steps_of_nothing() for _ in range(MANY_STEPS - 1))
    assert loop.steps_of_nothing()


def test_steps_that_train_between_others_are_nothing_to_tell_of(loop):
    for _ in range(3 * MANY_STEPS):
        loop.trains()
        assert not loop.steps_of_nothing()


def test_a_forward_in_training_is_no_evaluation_any_more(batch):
    """Its steps without backward are those of batches that are passed by."""
    loop = Loop(batch)
    loop.evaluates()
    loop.stage(batch)
    assert not any(loop.steps() for _ in range(3 * MANY_STEPS))
