"""The native chunk store under the compiler's sanitizers, with memory that runs out."""

from __future__ import annotations

from pathlib import Path

from tests.support.sanitized import run_sanitized

HERE = Path(__file__).resolve().parent / "sanitize"
HEADERS = Path(__file__).resolve().parents[2] / "embed"


def test_whatever_runs_out_of_memory_leaves_the_rows_as_they_were(tmp_path: Path) -> None:
    run_sanitized(
        HERE / "memory_runs_out.cpp", headers=HEADERS, sanitizers="address,undefined", level="-O0", folder=tmp_path
    )
