"""R over ranks: parameters do not depend on it, replicas are the same bits, and it changes in the middle of a run."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import DIM, assert_equal_to_reference, make_schema, train

GLOBAL_BATCH = 24
CHECKED = {"check_replicas_every": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("hot") / "train.txt"
    write_lines(path, 1210, seed=3, ids=40)
    return path


@pytest.fixture(scope="module")
def reference(data):
    return train(data, None, batch_size=GLOBAL_BATCH)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["direct", "arena"])
def test_parameters_do_not_depend_on_r(data, reference, size, mode):
    options = {"hot_rows": 60, "hot_every": 7, "stage_options": {**CHECKED, "mode": mode}, "verify_plan": True}
    parts = run_ranks(size, lambda c: train(data, c, batch_size=GLOBAL_BATCH // size, **options))
    assert_equal_to_reference(parts, reference)
    entering, touched = np.array(parts[0]["hot"]).T
    assert (entering > 0).sum() >= 4  # the first R, and switches with a full window
    assert touched.max() > 30
    for part in parts:
        assert part["r_changes"]["changes"] == (entering > 0).sum()
        assert part["r_changes"]["rows_entered"] == entering.sum()
        assert part["r_changes"]["seconds"] > 0.0
    width = DIM + 1  # with the state of row-wise Adagrad
    sent = sum(part["r_changes"]["bytes_sent"] for part in parts)
    assert sent == entering.sum() * width * 4 * (size - 1)
    assert sent == sum(part["bytes_sent"].get("entering", 0) for part in parts)
    for part in parts[1:]:
        assert part["hot"] == parts[0]["hot"]
        assert all((a == b).all() for a, b in zip(part["replicas"], parts[0]["replicas"], strict=True))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_other_optimizers_and_two_layouts(data, optimizer):
    """Optimizer state travels with the rows that enter."""
    schema = make_schema(optimizer, two_layouts=True)
    expected = train(data, None, batch_size=GLOBAL_BATCH, schema=schema, stage_options={"frozen": ("C2",)})
    options = {"hot_rows": 40, "hot_every": 5, "stage_options": {**CHECKED, "frozen": ("C2",)}, "window": 9}
    parts = run_ranks(3, lambda c: train(data, c, batch_size=8, schema=schema, **options))
    assert_equal_to_reference(parts, expected)


def test_all_rows_may_be_hot_and_epochs_may_break_off(data):
    expected = train(data, None, batch_size=GLOBAL_BATCH, steps=13, epochs=3)
    options = {"hot_rows": 10_000, "hot_every": 3, "stage_options": CHECKED}
    parts = run_ranks(3, lambda c: train(data, c, batch_size=8, steps=13, epochs=3, **options))
    assert_equal_to_reference(parts, expected)
