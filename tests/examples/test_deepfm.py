"""DeepFM's formula, term by term, and its training from the command line beside the torch reference."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

import headrace


@pytest.fixture
def deepfm(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "examples"))
    return importlib.import_module("deepfm").DeepFM


def test_a_logit_is_first_order_products_of_pairs_and_the_mlp(deepfm):
    torch.manual_seed(0)
    model = deepfm(2, 3, 4)
    dense, pooled = torch.randn(5, 2), torch.randn(5, 12)
    found = model(dense, pooled)
    for b in range(5):
        rows = [pooled[b, 4 * f : 4 * f + 4] for f in range(3)]
        pairs = sum((rows[i][:3] * rows[j][:3]).sum() for i in range(3) for j in range(i))
        deep = model.deep(torch.cat([dense[b], *(row[:3] for row in rows)]))[0]
        expected = model.linear(dense[b])[0] + sum(row[3] for row in rows) + pairs + deep
        torch.testing.assert_close(found[b], expected, rtol=1e-5, atol=1e-5)


def test_a_row_without_factors_is_refused(deepfm):
    with pytest.raises(ValueError, match="dim=1: a row is a first-order weight and at least one factor"):
        deepfm(2, 3, 1)


@pytest.mark.timeout(400)
def test_it_trains_and_equals_the_torch_reference(repository, tmp_path):
    headrace.generate("criteo-kaggle", tmp_path / "data", rows=3000, eval_rows=1000, seed=2)
    options = ["--model", "deepfm", "--data", tmp_path / "data", "--eval", tmp_path / "data" / "eval", "--reference"]
    done = subprocess.run(
        [sys.executable, "examples/train_dlrm.py", "--batch-size", "250", "--out", str(tmp_path), *map(str, options)],
        cwd=repository, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text())
    (epoch,) = report["epochs"]
    assert epoch["rows"] == 3000
    assert epoch["reference"]["allclose"], epoch["reference"]
    assert 0.55 < report["auc"] < report["auc_of_generator"]
