"""AUC and log loss over ranks are those of all rows, not means of what the ranks have."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headrace.indexer.exchange.simulated import run_ranks


@pytest.fixture
def evaluate(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "examples"))
    return importlib.import_module("evaluation").evaluate


def batches(rows):
    return [SimpleNamespace(labels=torch.tensor([y for _, y in part]), logits=[x for x, _ in part]) for part in rows]


def logits_of(batch):
    return torch.tensor(batch.logits, dtype=torch.float32)


ROWS = [(-2.0, 0.0), (1.5, 1.0), (0.5, 0.0), (-1.0, 1.0), (0.0, 1.0), (2.0, 1.0), (-0.5, 0.0)]
SHARES = [[ROWS[:2], ROWS[5:6]], [ROWS[2:5], []], [[], ROWS[6:]]]  # of three ranks, two batches each


def test_over_ranks(evaluate):
    one = evaluate(batches([ROWS]), logits_of)
    found = run_ranks(3, lambda ranks: evaluate(batches(SHARES[ranks.rank]), logits_of, ranks))
    assert found[0] == found[1] == found[2]
    assert found[0]["rows"] == one["rows"] == 7
    # Of the 12 pairs of a 1 and a 0 the 1 is above in all but (-1, 0.5), (-1, -0.5) and (0, 0.5).
    assert found[0]["auc"] == one["auc"] == 9 / 12
    assert found[0]["logloss"] == pytest.approx(one["logloss"], rel=1e-15)
    apart = [evaluate(batches(share), logits_of)["auc"] for share in SHARES]
    assert apart == [1.0, 0.0, None]  # whose mean says nothing


def test_without_rows_and_with_one_label(evaluate):
    empty = run_ranks(2, lambda ranks: evaluate([], logits_of, ranks))
    assert empty == [{"rows": 0, "auc": None, "logloss": None}] * 2 == [evaluate([], logits_of)] * 2
    same = evaluate(batches([[(0.0, 1.0), (1.0, 1.0)]]), logits_of)
    assert same["auc"] is None
    assert same["logloss"] == pytest.approx(-np.log([0.5, 1 / (1 + np.exp(-1))]).mean())


def test_a_set_without_labels_is_refused(evaluate):
    with pytest.raises(ValueError, match="no label column"):
        evaluate([SimpleNamespace(labels=None)], logits_of)
