"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]

settings.register_profile("no deadline", deadline=None)  # how long an example takes decides nothing
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of small real files of the public datasets; they are not part of the repository."""
    folder = Path(os.environ.get("HEADRACE_SHARED", REPOSITORY.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"the folder of real sample files is not here: {folder}")
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY
