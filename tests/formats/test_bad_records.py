"""The policy for bad records."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.formats.bad_records import BadRecordLog, BadRecords
from headrace.formats.errors import BadRecordError, BadRecordLimitError


def record(line: int = 1) -> BadRecordError:
    return BadRecordError("día_0", line, "I1", b"\xff1.0\x00", "not a decimal integer", "hint")


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "ignore"}, {"mode": ""}, {"mode": "skip", "max_count": -1}, {"mode": "skip", "max_count": 1.0},
        {"mode": "skip", "max_count": True}, {"mode": "skip", "max_rate": 1.1}, {"mode": "skip", "max_rate": -0.1},
        {"mode": "skip", "max_rate": float("nan")}, {"mode": "quarantine"}, {"mode": "skip", "quarantine_path": "x"},
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bad records"):
        BadRecords(**options)


def test_a_string_is_a_mode() -> None:
    assert BadRecords.of("skip") == BadRecords(mode="skip")
    policy = BadRecords(mode="skip", max_count=3)
    assert BadRecords.of(policy) is policy
    with pytest.raises(ValueError, match="quarantine_path"):
        BadRecords.of("quarantine")
    with pytest.raises(TypeError, match="int"):
        BadRecords.of(3)  # type: ignore[arg-type]


def test_raise_raises_the_record() -> None:
    with pytest.raises(BadRecordError, match="line 5") as caught:
        BadRecordLog(BadRecords()).add(record(5), b"", lines_read=5)
    assert type(caught.value) is BadRecordError


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_one_more_than_max_count_is_an_error(limit: int) -> None:
    log = BadRecordLog(BadRecords(mode="skip", max_count=limit))
    for i in range(limit):
        log.add(record(i + 1), b"", lines_read=10 * i)
    with pytest.raises(BadRecordLimitError, match=f"max_count={limit}") as caught:
        log.add(record(77), b"", lines_read=99)
    assert (caught.value.bad, caught.value.lines, caught.value.line) == (limit + 1, 99, 77)
    assert caught.value.__cause__ is not None


def test_max_rate_is_taken_over_at_least_1000_lines() -> None:
    log = BadRecordLog(BadRecords(mode="skip", max_rate=0.01))
    for i in range(10):
        log.add(record(), b"", lines_read=i + 1)
    with pytest.raises(BadRecordLimitError, match=r"max_rate=0\.01"):
        log.add(record(), b"", lines_read=1099)
    log = BadRecordLog(BadRecords(mode="skip", max_rate=0.01))
    for i in range(100):
        log.add(record(), b"", lines_read=(i + 1) * 100)
    assert log.count == 100


def test_quarantine_keeps_the_bytes_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    log = BadRecordLog(BadRecords(mode="quarantine", quarantine_path=path))
    log.add(record(3), b"1\t\xff1.0\x00\r", lines_read=3)
    log.add(record(4), memoryview(b"x"), lines_read=4)
    log.add(record(9), None, lines_read=9)
    assert path.read_bytes() == b"1\t\xff1.0\x00\r\nx\n"
    entries = [json.loads(line) for line in Path(f"{path}.jsonl").read_text().splitlines()]
    assert entries[0] == {
        "file": "día_0",
        "line": 3,
        "column": "I1",
        "reason": "not a decimal integer",
        "hint": "hint",
        "offending": "\xff1.0\x00",
        "stored": True,
    }
    assert [(e["line"], e["stored"]) for e in entries] == [(3, True), (4, True), (9, False)]


def test_the_record_that_exceeds_the_limit_is_in_quarantine_too(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    log = BadRecordLog(BadRecords(mode="quarantine", quarantine_path=path, max_count=0))
    with pytest.raises(BadRecordLimitError):
        log.add(record(), b"x", lines_read=1)
    assert path.read_bytes() == b"x\n"


def test_a_quarantine_in_no_folder_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        BadRecordLog(BadRecords(mode="quarantine", quarantine_path=tmp_path / "absent" / "x"))


def test_counts_are_exact_with_many_threads_and_belong_to_one_log(tmp_path: Path) -> None:
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad")
    log, other = BadRecordLog(policy), BadRecordLog(policy)
    threads = [
        threading.Thread(target=lambda: [log.add(record(), b"x" * 50, lines_read=1) for _ in range(100)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert (log.count, other.count) == (400, 0)
    assert (tmp_path / "bad").read_bytes() == (b"x" * 50 + b"\n") * 400
