"""The main job from the command line, on real rows and on generated ones."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

import headrace


def run(repository: Path, out: Path, *arguments: str, expect: int = 0) -> dict:
    """Run the example; its report."""
    done = subprocess.run(
        [sys.executable, "examples/train_dlrm.py", "--out", str(out), *map(str, arguments)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == expect, done.stderr[-2000:]
    return json.loads((out / "report.json").read_text()) if expect == 0 else {}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "sgd"])
def test_real_kaggle_rows_equal_the_torch_reference(shared_data, repository, tmp_path, optimizer):
    folder = shared_data / "criteo_kaggle"
    report = run(
        repository, tmp_path, "--data", folder / "wideresdnn_train.tsv", "--eval", folder / "wideresdnn_dev.tsv",
        "--reference", "--epochs", "2", "--batch-size", "256", "--optimizer", optimizer,
    )  # fmt: skip
    for epoch in report["epochs"]:
        assert (epoch["rows"], epoch["rows_in"], epoch["rows_skipped"]) == (7200, 7200, 0)
        assert epoch["reference"]["allclose"], epoch["reference"]
        assert epoch["evaluation"]["rows"] == 409
        assert abs(epoch["evaluation"]["auc"] - epoch["reference"]["evaluation"]["auc"]) < 0.002
    assert report["stale_reads"] == 0
    stage = report["stage"]
    assert stage["moves_beside"]
    assert 0 < stage["trainer_wait_share"] < 1
    assert stage["steps"] == report["steps"]
    assert set(stage["step_s"]) == {"gather", "forward", "backward", "update", "fetch", "write_back", "wait"}
    assert report["auc"] > 0.6


@pytest.mark.timeout(400)
def test_real_terabyte_rows_plain_and_gzipped(shared_data, repository, tmp_path):
    plain = shared_data / "criteo_terabyte" / "day_11_first_3k_rows_original.tsv"
    packed = tmp_path / "day_11.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    options = ("--reference", "--epochs", "2", "--batch-size", "256")
    first = run(repository, tmp_path / "a", "--data", plain, "--eval", plain, *options)
    second = run(repository, tmp_path / "b", "--data", packed, "--eval", packed, *options)
    for epoch in (*first["epochs"], *second["epochs"]):
        assert (epoch["rows_in"], epoch["rows_skipped"]) == (3000, 0)
        assert epoch["reference"]["allclose"]
    assert first["parameters_digest"] == second["parameters_digest"]
    assert first["plan_digest"] == second["plan_digest"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("stop_after", [7, 20, 30])
def test_a_resumed_run_ends_with_the_same_parameters(repository, tmp_path, stop_after):
    headrace.generate("criteo-kaggle", tmp_path / "data", rows=4000, files=2, seed=3)
    options = ("--data", tmp_path / "data", "--epochs", "2", "--batch-size", "200", "--save-every", "5", "--shuffle")
    whole = run(repository, tmp_path / "whole", *options)
    broken = tmp_path / "broken"
    run(repository, broken, *options, "--stop-after", stop_after, expect=1)
    resumed = run(repository, broken, *options, "--resume")
    assert resumed["parameters_digest"] == whole["parameters_digest"]
    assert resumed["steps"] == whole["steps"] == 40


REPORT_KEYS = (
    "rows", "rows_per_s", "unique_share", "window", "hit_rate", "r_rows", "r_coverage", "bytes_planned",
    "trainer_wait_share", "auc", "auc_of_generator", "logloss", "peak_rss_bytes", "stale_reads", "rows_in",
    "rows_skipped",
)  # fmt: skip


@pytest.mark.timeout(400)
def test_generated_rows_give_a_complete_report(repository, tmp_path):
    headrace.generate("criteo-kaggle", tmp_path / "data", rows=6000, eval_rows=2000, compression="gzip")
    report = run(
        repository, tmp_path / "out", "--data", tmp_path / "data", "--eval", tmp_path / "data" / "eval",
        "--batch-size", "500", "--mode", "direct",
    )  # fmt: skip
    assert [key for key in REPORT_KEYS if report[key] is None] == []
    assert report["rows"] == report["rows_in"] == 6000
    assert 0.5 < report["auc"] < report["auc_of_generator"] < 1
