"""The benchmark of what overlap gains runs, and its lines say what was measured."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest


def test_a_small_run(repository, tmp_path):
    out = tmp_path / "gain.json"
    sizes = ("--batch-size", "64", "--batches", "6", "--warm-up", "2", "--window", "2", "--dim", "8", "--rounds", "2")
    shares = ("--capacity-shares", "0,0.1,1", "--hidden", "0,8", "--threads", "1")
    done = subprocess.run(
        [sys.executable, "benchmarks/overlap_gain.py", *sizes, *shares, "--json", str(out)],
        cwd=repository, env={**os.environ, "PYTHONPATH": str(repository / "src")},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(out.read_text())
    # A tenth of the window's rows is less than two batches have, and measured once, with these.
    assert report["least_capacity"] > 0.1 * report["window_distinct_rows"]
    capacities = [line["capacity"] for line in report["table"]]
    assert capacities[:2] == [report["least_capacity"]] * 2
    assert [line["hidden"] for line in report["table"]] == [0, 8] * (len(capacities) // 2)
    for line in report["table"]:
        assert line["gain"] == pytest.approx(line["inline_ms"] / line["overlap_ms"])
        assert line["gain_least"] <= line["gain_most"]
        assert line["rows_moved"] > 0
        assert 0 < line["moving_share"] < 1
    text = done.stdout.splitlines()
    assert len(text) == 1 + len(capacities)
    assert text[0].split()[:3] == ["capacity", "hidden", "threads"]


def test_the_least_capacity_is_that_of_two_batches(monkeypatch, repository):
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import torch
    from overlap_gain import distinct_rows, least_capacity

    class Group:
        def __init__(self, rows):
            self.locations = torch.from_numpy(np.array(rows, np.uint64))

    class Batch:
        def __init__(self, *rows):
            self.groups = (Group(rows),)

    batches = [Batch(1, 2, 3), Batch(2, 3, 4), Batch(5, 6)]
    assert least_capacity(batches) == 5  # 2, 3, 4 and 5, 6
    assert distinct_rows(batches) == 6
