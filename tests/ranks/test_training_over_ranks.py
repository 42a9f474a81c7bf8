"""Training over ranks equals training in one process over the same global batches."""

from __future__ import annotations

import pytest

from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, make_schema, train

GLOBAL_BATCH, ROWS = 24, 1210


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "train.txt"
    write_lines(path, ROWS, seed=3, ids=40)
    return path


@pytest.fixture(scope="module")
def reference(data):
    return train(data, None, batch_size=GLOBAL_BATCH)


@pytest.mark.parametrize(("size", "window"), [(1, 4), (2, 4), (3, 0), (3, 4), (4, 4)])
def test_fifty_steps(data, reference, size, window):  # P44, P47
    parts = run_ranks(size, lambda c: train(data, c, batch_size=GLOBAL_BATCH // size, window=window))
    assert_equal_to_reference(parts, reference, exact=size == 1)
    assert all(part["seen"] == [GLOBAL_BATCH // size] * 50 for part in parts)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_other_optimizers_and_two_layouts(data, optimizer):
    schema = make_schema(optimizer, two_layouts=True)
    options = {"schema": schema, "stage_options": {"weight_decay": 0.01}}
    expected = train(data, None, batch_size=GLOBAL_BATCH, **options)
    parts = run_ranks(3, lambda c: train(data, c, batch_size=8, **options))
    assert_equal_to_reference(parts, expected)


def test_arenas_of_the_owners(data, reference):
    options = {"stage_options": {"mode": "arena"}, "capacity": 600, "verify_plan": True}
    parts = run_ranks(3, lambda c: train(data, c, batch_size=8, **options))
    assert_equal_to_reference(parts, reference)


def test_sequences_and_frozen_tables(data):
    options = {"stage_options": {"frozen": ("C1", "C7")}}
    expected = train(data, None, batch_size=GLOBAL_BATCH, **options)
    parts = run_ranks(2, lambda c: train(data, c, batch_size=12, **options))
    assert_equal_to_reference(parts, expected)
    moved = [key for key, row in expected["rows"].items() if key[0] == 0 and row[-1] != 0]
    assert not moved  # no optimizer state: it was never updated


def test_whole_epochs_with_a_last_batch_of_fewer_rows_than_ranks(data):  # P1, L3, L16, P7
    """1210 rows: 3 global batches of 402 and one of 4, for 6 ranks; two epochs over one loader (P10)."""
    expected = train(data, None, batch_size=402, epochs=2)
    parts = run_ranks(6, lambda c: train(data, c, batch_size=67, epochs=2))
    assert_equal_to_reference(parts, expected)
    assert [part["seen"][-1] for part in parts] == [0, 1, 1, 0, 1, 1]
    assert [len(part["seen"]) for part in parts] == [8] * 6


def test_an_epoch_that_is_broken_off(data):
    """The rows of steps that were exchanged, but not trained on, are undone at their owners, and read again."""
    expected = train(data, None, batch_size=GLOBAL_BATCH, steps=9, epochs=3)
    parts = run_ranks(3, lambda c: train(data, c, batch_size=8, steps=9, epochs=3, window=6))
    assert_equal_to_reference(parts, expected)


def test_payload_is_what_the_plan_says(data):
    def work(communicator):
        result = train(data, communicator, batch_size=8, steps=1000)
        return result["planned"], communicator.bytes_sent()

    for rank, (planned, sent) in enumerate(run_ranks(3, work)):
        assert planned["rows"] == sum(sent["rows"]) > 0
        assert planned["gradients"] == sum(sent["gradients"]) + sum(sent["deferred"])
        assert min(sum(sent["gradients"]), sum(sent["deferred"])) > 0
        assert sent["rows"][rank] == sent["requests"][rank] == 0
