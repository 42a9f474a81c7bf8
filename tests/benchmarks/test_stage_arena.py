"""The benchmark of steps in arena mode runs, and its plans are those of the loader's planner."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("options", [("--hidden", "0"), ("--kernels", "torch", "--window", "0", "--hidden", "8")])
def test_a_small_run(repository, options):
    sizes = ("--batch-size", "64", "--batches", "6", "--warm-up", "2", "--window", "2", "--dim", "8", "--rounds", "1")
    done = subprocess.run(
        [sys.executable, "benchmarks/stage_arena.py", *sizes, "--threads", "1", *options],
        cwd=repository, env={**os.environ, "PYTHONPATH": str(repository / "src")},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert set(report["step_ms"]) == {"overlap", "inline"}
    assert (report["device"], report["device_name"]) == ("cpu", "cpu")
    for name, stats in report["stats"].items():
        assert (stats["steps"], stats["moves_beside"]) == (6, name == "overlap")
        assert stats["rows_fetched"] > 0
