"""The native planner under the compiler's sanitizers: with memory that runs out, and its parts against models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sanitized import run_sanitized

HERE = Path(__file__).resolve().parent / "sanitize"
HEADERS = Path(__file__).resolve().parents[3] / "ingest" / "plan"


def test_what_runs_out_of_memory_leaves_all_as_it_was(tmp_path: Path) -> None:
    run_sanitized(
        HERE / "memory_runs_out.cpp", headers=HEADERS, sanitizers="address,undefined", level="-O0", folder=tmp_path
    )


def test_links_that_are_renewed_change_no_plan(tmp_path: Path) -> None:
    run_sanitized(
        HERE / "renumbering.cpp", headers=HEADERS, sanitizers="address,undefined", level="-O1", folder=tmp_path
    )


@pytest.mark.parametrize("options", [[], ["-U__SSE2__"]], ids=["as it is built", "portable"])
def test_page_index_and_flags_are_those_of_their_models(options: list[str], tmp_path: Path) -> None:
    run_sanitized(
        HERE / "parts.cpp",
        headers=HEADERS,
        sanitizers="address,undefined",
        level="-O1",
        folder=tmp_path,
        options=options,
    )
