"""Loaders of small Criteo-shaped files, for tests."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import headrace

ROWS, BATCH = 157, 10

PLACES = frozenset({"slots"})
"""A resumed run plans from an empty arena: slots are its own."""


def loader_of(data, schema, **options):
    options = {"batch_size": BATCH, "window": 3, "capacity": 4000, "timeout": 60, "verify_plan": True, **options}
    return headrace.DataLoader(data, schema=schema, **options)


def index_of(loader):
    return loader.index.snapshot().to_pydict()


def row_order(loader):
    return [row for batch in loader for row in batch.source.arrays()[1].tolist()]


def run_python(code: str, repository: Path, *arguments: str, timeout: float = 100) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
