"""A small Criteo-shaped file and its schema."""

from __future__ import annotations

import pytest

import headrace
from tests.support.criteo_text import write_lines
from tests.support.loaders import ROWS


@pytest.fixture(scope="session")
def schema():
    return headrace.criteo_schema(dim=4)


@pytest.fixture
def data(tmp_path):
    write_lines(tmp_path / "train.txt", ROWS)
    return tmp_path / "train.txt"
