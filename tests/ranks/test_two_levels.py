"""Ranks that share a node deduplicate together: the same parameters, and a row crosses to another node once."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.indexer.exchange.errors import RankFailedError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, make_schema, train

GLOBAL_BATCH = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("levels") / "train.txt"
    write_lines(path, 1210, seed=3, ids=40)
    return path


@pytest.fixture(scope="module")
def reference(data):
    return train(data, None, batch_size=GLOBAL_BATCH)


@pytest.mark.parametrize(("size", "node_size"), [(2, 2), (4, 2), (6, 3), (4, 4)])
def test_fifty_steps(data, reference, size, node_size):
    def parts_of(**options):
        work = lambda c: train(data, c, batch_size=GLOBAL_BATCH // size, node_size=node_size)  # noqa: E731
        return run_ranks(size, work, **options)

    shared, messages = parts_of(), parts_of(shared_memory=False)
    assert_equal_to_reference(shared, reference)
    for one, other in zip(shared, messages, strict=True):
        assert one["rows"].keys() == other["rows"].keys()
        assert all(one["rows"][key].tobytes() == row.tobytes() for key, row in other["rows"].items())
        assert one["bytes_sent"].pop("node_bells") > 0
        for counts in (one["bytes_sent"], other["bytes_sent"]):
            assert counts.pop("node_memory") > 0  # each finds out what the other has
        assert one["bytes_sent"] == other["bytes_sent"]


def test_with_hot_rows_arenas_and_two_layouts(data):
    schema = make_schema("adagrad", two_layouts=True)
    expected = train(data, None, batch_size=GLOBAL_BATCH, schema=schema)
    options = {"hot_rows": 50, "hot_every": 6, "stage_options": {"mode": "arena", "check_replicas_every": 1}}
    parts = run_ranks(4, lambda c: train(data, c, batch_size=6, node_size=2, schema=schema, **options))
    assert_equal_to_reference(parts, expected)


def test_what_crosses_nodes_is_each_row_once_and_no_more_than_flat(data):
    def bytes_between_nodes(**options):
        def work(communicator):
            result = train(data, communicator, batch_size=8, steps=1000, **options)
            sent, here = communicator.bytes_sent(), communicator.rank // 2
            across = {p: sum(n for r, n in enumerate(b) if r // 2 != here) for p, b in sent.items()}
            return result["planned"], across

        return run_ranks(4, work)

    flat, levels = bytes_between_nodes(), bytes_between_nodes(node_size=2)
    for planned, across in levels:
        assert across["rows"] == planned["rows"] > 0
        assert across["gradients"] + across["deferred"] == planned["gradients"] > 0
        assert across["node_rows"] == across["node_gradients"] == across["node_requests"] == 0
    for purpose in ("rows", "requests"):
        once = sum(across[purpose] for _, across in levels)
        assert once < 0.95 * sum(across[purpose] for _, across in flat)


def test_an_error_of_one_rank_is_raised_in_all_nodes(data):
    def broken(block):
        raise RuntimeError("this transform does not work")

    def work(communicator):
        transform = broken if communicator.rank == 3 else None
        with pytest.raises(RuntimeError if communicator.rank == 3 else RankFailedError, match="this transform"):
            train(data, communicator, batch_size=8, node_size=2, transform=transform)

    run_ranks(4, work)


def test_nodes_must_be_of_one_size(data):
    with pytest.raises(ValueError, match="3 ranks are not nodes of node_size=2 each"):
        run_ranks(3, lambda c: train(data, c, batch_size=8, node_size=2))


def test_uneven_ranks_in_nodes(data, tmp_path):
    write_lines(tmp_path / "few.txt", 3, seed=9)

    def work(communicator):
        mine = data if communicator.rank == 2 else tmp_path / "few.txt"
        return train(mine, communicator, batch_size=100, steps=1000, shard=False, node_size=2, uneven="pad")["seen"]

    seen = run_ranks(4, work)
    assert seen == [[100] * 12 + [10]] * 4
    assert np.sum(seen) == 4 * 1210
