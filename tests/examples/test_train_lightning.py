"""The Lightning loop, where Lightning is installed; what it rests on is tested in tests/ingest/adapters."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys

import pytest

import headrace


def run(repository, *arguments):
    return subprocess.run(
        [sys.executable, "examples/train_lightning.py", *map(str, arguments)],
        cwd=repository, capture_output=True, text=True, timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


INSTALLED = any(importlib.util.find_spec(name) for name in ("lightning", "pytorch_lightning"))


@pytest.mark.timeout(400)
@pytest.mark.skipif(not INSTALLED, reason="Lightning is not installed here (pip install lightning)")
def test_it_trains_and_evaluates(repository, tmp_path):
    headrace.generate("criteo-kaggle", tmp_path / "data", rows=3000, eval_rows=1000, seed=2)
    data = tmp_path / "data"
    done = run(repository, "--data", data, "--eval", data / "eval", "--batch-size", 250, "--epochs", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    report = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert (report["rows"], report["steps"]) == (6000, 24)
    assert report["evaluation"]["rows"] == 1000
    assert report["evaluation"]["auc"] > 0.55


@pytest.mark.timeout(400)
@pytest.mark.skipif(INSTALLED, reason="Lightning is installed here")
def test_without_lightning_it_says_what_to_install(repository):
    done = run(repository, "--data", "none")
    assert done.returncode == 1
    assert "pip install lightning" in done.stderr
