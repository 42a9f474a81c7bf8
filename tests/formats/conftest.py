"""Fixtures of the formats tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of small real files; tests that need it are skipped where it is absent."""
    given = os.environ.get("HEADRACE_SHARED")
    shared = Path(given) if given else Path(__file__).resolve().parents[2].parent / "shared"
    if not (shared / "data").is_dir():
        pytest.skip(f"no real data: {shared / 'data'} is absent (HEADRACE_SHARED names another place)")
    return shared / "data"
