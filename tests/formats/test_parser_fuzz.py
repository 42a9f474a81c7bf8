"""Files of every format with bytes changed or cut: rows that add up, or one of the errors; no crash, and no hang.

Together with the parser of Criteo text under the sanitizers (`test_criteo_fuzz.py`) about a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.formats.datasets import DATASETS
from tests.support.parser_fuzz import forms

SAME_PARSERS = {"criteo-terabyte", "taobao-userbehavior-history", "taobao-ad-history", "csv"}


def fuzz(folder: Path, repository: Path, *, seed: int, seconds: float) -> None:
    """`seconds` of processor time for each format."""
    command = [sys.executable, "-m", "tests.support.parser_fuzz", str(folder), str(seed), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repository / "src"), str(repository)])}
    result = subprocess.run(
        command, env=environment, cwd=repository, capture_output=True, text=True, timeout=3000, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    found = {name: list(map(int, counts)) for name, *counts in (line.split() for line in result.stdout.splitlines())}
    assert list(found) == list(forms())
    for name, (reads, errors, rows, refused) in found.items():
        assert reads >= 10, name
        assert rows > 0, name
        assert errors < reads, name
        assert errors + refused > 0, name
    print(found)


@pytest.mark.timeout(600)
def test_damaged_files_of_every_format(tmp_path: Path, repository: Path) -> None:
    fuzz(tmp_path, repository, seed=0, seconds=1.5)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_damaged_files_of_every_format(tmp_path: Path, repository: Path) -> None:
    fuzz(tmp_path, repository, seed=1, seconds=25)


def test_no_dataset_is_left_out() -> None:
    assert {form.dataset for form in forms().values()} == set(DATASETS) - SAME_PARSERS
