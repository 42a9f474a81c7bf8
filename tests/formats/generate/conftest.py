from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    """Folder of small real files; the test is skipped where it is absent."""
    default = Path(__file__).resolve().parents[4] / "shared"
    folder = Path(os.environ.get("HEADRACE_SHARED", default)) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real files at {folder}; set HEADRACE_SHARED")
    return folder
