"""Live streams over ranks: each rank idles by itself, and hands out what it holds while others still read (L6, P13)."""

from __future__ import annotations

import time

import numpy as np
import pytest

from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, train

IDLE_S = 0.02


def stalls(rank):
    """A transform after which rows come late now and then, for about as long as what counts as idle."""
    rng = np.random.default_rng(rank)

    def transform(block):
        if rng.random() < 0.5:
            time.sleep(float(rng.random()) * 2 * IDLE_S)
        return block

    return transform


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("live") / "rows.txt"
    write_lines(path, 400, seed=1, ids=30)
    return path


@pytest.mark.parametrize(
    "options", [{}, {"hot_rows": 20, "hot_every": 3}, {"node_size": 2}, {"window": 1}], ids=["r0", "r20", "nodes", "l1"]
)
def test_ranks_that_idle_at_different_steps_train_as_one_process(file, options):
    size = 4 if "node_size" in options else 3
    parts = run_ranks(
        size,
        lambda c: train(file, c, batch_size=4, steps=30, transform=stalls(c.rank), idle_s=IDLE_S, **options),
        timeout_s=60,
    )
    reference = train(file, None, batch_size=4 * size, steps=30)
    assert sum(sum(part["seen"]) for part in parts) == sum(reference["seen"])
    assert_equal_to_reference(parts, reference)


def test_at_its_end_a_live_stream_gives_all_rows(file):
    parts = run_ranks(
        3, lambda c: train(file, c, batch_size=8, steps=1000, transform=stalls(c.rank), idle_s=IDLE_S), timeout_s=60
    )
    reference = train(file, None, batch_size=24, steps=1000)
    assert sum(sum(part["seen"]) for part in parts) == 400
    assert_equal_to_reference(parts, reference)
