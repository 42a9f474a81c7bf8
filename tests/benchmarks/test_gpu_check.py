"""The check of a GPU machine: what it says without a GPU, and a rehearsal of its steps on the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch


def run(repository, tmp_path, *arguments, timeout_s=600):
    out = tmp_path / "report.json"
    command = [sys.executable, "benchmarks/gpu_check.py", "--out", str(out), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    done = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, timeout=timeout_s
    )  # fmt: skip
    return done, json.loads(out.read_text())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_and_runs_nothing(repository, tmp_path):
    done, report = run(repository, tmp_path)
    assert done.returncode == report["status"] == 2
    assert "gpu-check: no GPU: torch" in done.stdout
    assert "nothing was run" in report["result"]
    assert report["steps"] == {}


def test_without_a_compiler_it_says_so(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    done, report = run(repository, tmp_path, "--device", "cpu")
    assert (done.returncode, report["steps"]) == (2, {})
    assert "no C++ compiler" in report["result"]


def test_it_ends_in_time_and_names_the_step(repository, tmp_path):
    done, report = run(repository, tmp_path, "--device", "cpu", "--limit-s", "0.1")
    assert done.returncode == 1
    statuses = [step["status"] for step in report["steps"].values()]
    assert statuses[0] == 0 or "used up" in statuses[0]  # a build that has nothing to do ends before it is looked at
    assert all("used up" in status for status in statuses[1:])
    assert len(statuses) > 1 or statuses[0] != 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_rehearsal_on_the_host(repository, tmp_path):
    done, report = run(repository, tmp_path, "--device", "cpu", "--limit-s", "1700", timeout_s=1750)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert [step["status"] for step in report["steps"].values()] == [0] * 4
    assert report["benchmarks"]["sgd"]["step_ms"]["overlap"] > 0
