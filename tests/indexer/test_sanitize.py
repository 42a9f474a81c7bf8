"""The native index under the compiler's sanitizers: memory, undefined behaviour, data races."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sanitized import run_sanitized

HERE = Path(__file__).resolve().parent / "sanitize"
HEADERS = Path(__file__).resolve().parents[2] / "indexer"


@pytest.mark.parametrize(
    ("source", "sanitizers", "level"),
    [
        ("tables.cpp", "address,undefined", "-O1"),
        ("random_history.cpp", "address,undefined", "-O0"),
        ("threads.cpp", "thread", "-O1"),
        ("order.cpp", "thread", "-O1"),
        ("order.cpp", "address,undefined", "-O1"),
    ],
)
def test_random_workload_is_clean(source: str, sanitizers: str, level: str, tmp_path: Path) -> None:
    run_sanitized(HERE / source, headers=HEADERS, sanitizers=sanitizers, level=level, folder=tmp_path)
