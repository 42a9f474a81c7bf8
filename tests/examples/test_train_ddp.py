"""The DistributedDataParallel loop under torchrun: one rank trains, and so do two, on the same global batches."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import headrace


def torchrun(repository, ranks, data):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [sys.executable, *launch, "examples/train_ddp.py", "--data", str(data), "--batch-size", "200", "--dim", "4"],
        cwd=repository, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp") / "data"
    headrace.generate("criteo-kaggle", folder, rows=1100, seed=2)
    return folder


@pytest.mark.timeout(400)
def test_one_rank_trains(repository, data):
    done = torchrun(repository, 1, data)
    assert done.returncode == 0, done.stderr[-2000:]
    report = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert report["rows"] == 1100
    assert 0 < report["loss"] < 0.8
    assert report["index_rows"] > 1000


@pytest.mark.timeout(400)
def test_two_ranks_share_rows_and_index(repository, data):
    done = torchrun(repository, 2, data)
    assert done.returncode == 0, done.stderr[-2000:]
    reports = [ast.literal_eval(line) for line in done.stdout.splitlines()]  # whole lines, whoever writes first
    assert len(reports) == 2
    assert [report["rows"] for report in reports] == [400, 400]  # two whole global batches of 400 of 1,100 rows
    assert all(0 < report["loss"] < 0.8 for report in reports)
    assert all(report["index_rows"] > 400 for report in reports)  # each owns about a half
