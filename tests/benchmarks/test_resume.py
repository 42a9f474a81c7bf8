"""The benchmark of resuming inside a file: every form, from every place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_every_form_has_a_time_for_every_place(repository: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/resume.py", "--rows", "60000", "--rounds", "1", "--work", tmp_path, "--json", "-"],
        cwd=repository, env={**os.environ, "PYTHONPATH": "src"}, capture_output=True, text=True, timeout=110,
        check=True,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["shares"] == [0.0, 0.25, 0.5, 0.75, 0.95]
    assert list(report["seconds"]) == ["tsv", "tsv_gz", "tsv_zst", "parquet"]
    assert all(len(times) == 5 and min(times) > 0 for times in report["seconds"].values())
    assert list(tmp_path.iterdir()) == []
