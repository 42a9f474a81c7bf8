"""The policy for bad records."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.formats import quarantine as pair
from headrace.formats.bad_records import BadRecordLog, BadRecords
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.errors import BadRecordError, BadRecordLimitError
from headrace.formats.schema import Schema, Sparse


class Block:
    """The bad lines `numbers` of a block of `lines` lines that begins at the 0-based `first_line`."""

    def __init__(self, *numbers: int, first_line: int = 0, lines: int = 0, file: str = "día_0") -> None:
        self.numbers = np.array(numbers, np.int64)
        self.first_line, self.file = first_line, file
        self.lines = lines or max(numbers, default=0) - first_line
        self.texts: dict[int, bytes | memoryview | None] = {}
        self.described: list[int] = []

    def describe(self, at: int) -> tuple[BadRecordError, bytes | memoryview | None]:
        line = int(self.numbers[at])
        self.described.append(line)
        return record(line), self.texts.get(line, b"%d" % line)

    def settle(self, log: BadRecordLog) -> None:
        log.check(self.first_line, self.numbers, self.describe)
        log.settle(self.file, self.first_line, self.lines, self.numbers, self.describe)


def record(line: int = 1) -> BadRecordError:
    return BadRecordError("día_0", line, "I1", b"\xff1.0\x00", "not a decimal integer", "hint")


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "ignore"}, {"mode": ""}, {"mode": "skip", "max_count": -1},
        {"mode": "skip", "max_rate": 1.1}, {"mode": "skip", "max_rate": -0.1},
        {"mode": "skip", "max_rate": float("nan")}, {"mode": "quarantine"}, {"mode": "skip", "quarantine_path": "x"},
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bad records"):
        BadRecords(**options)


@pytest.mark.parametrize("own", ["bad.tsv", "bad.tsv.jsonl"])
def test_a_file_that_is_no_quarantine_is_not_appended_to(tmp_path: Path, own: str) -> None:
    (tmp_path / own).write_bytes(b"0\t1\n")
    with pytest.raises(FileExistsError, match=rf"{own} is there, and is no quarantine; give the name of a new file"):
        BadRecordLog(BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad.tsv"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {own: b"0\t1\n"}


@pytest.mark.parametrize("text", [b"1", None])
def test_an_earlier_quarantine_or_an_empty_file_is_gone_on_with(tmp_path: Path, text: bytes | None) -> None:
    (tmp_path / "bad.tsv").touch()  # as tempfile makes one
    for _ in range(2):
        block = Block(1)
        block.texts[1] = text
        block.settle(BadRecordLog(BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad.tsv")))
    assert (tmp_path / "bad.tsv").read_bytes() == (b"1\n1\n" if text else b"")
    assert len((tmp_path / "bad.tsv.jsonl").read_bytes().splitlines()) == 2


@pytest.mark.parametrize("options", [{"max_count": 1.0}, {"max_count": True}, {"max_rate": "1"}, {"max_rate": True}])
def test_a_limit_is_a_number(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="bad records: max"):
        BadRecords(mode="skip", **options)


def test_numbers_of_numpy_are_numbers() -> None:
    assert BadRecords(mode="skip", max_count=np.int32(3)) == BadRecords(mode="skip", max_count=3)  # type: ignore[arg-type]


def test_a_string_is_a_mode() -> None:
    assert BadRecords.of("skip") == BadRecords(mode="skip")
    policy = BadRecords(mode="skip", max_count=3)
    assert BadRecords.of(policy) is policy
    with pytest.raises(ValueError, match=r'give BadRecords\(mode="quarantine", quarantine_path="bad.tsv"\)'):
        BadRecords.of("quarantine")
    with pytest.raises(TypeError, match="int"):
        BadRecords.of(3)  # type: ignore[arg-type]


def test_raise_raises_the_first_record_and_describes_no_other() -> None:
    block = Block(5, 6, 7)
    with pytest.raises(BadRecordError, match="line 5") as caught:
        block.settle(BadRecordLog(BadRecords()))
    assert type(caught.value) is BadRecordError
    assert block.described == [5]


def test_skip_describes_nothing() -> None:
    log, block = BadRecordLog(BadRecords(mode="skip", max_count=9, max_rate=1.0)), Block(5, 6, 7, lines=10)
    block.settle(log)
    assert (log.lines, log.count, block.described) == (10, 3, [])


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("at_once", [False, True])
def test_one_more_than_max_count_is_an_error(limit: int, at_once: bool) -> None:
    log = BadRecordLog(BadRecords(mode="skip", max_count=limit))
    if not at_once:
        for i in range(limit):
            Block(i + 1, first_line=i).settle(log)
    first = 0 if at_once else limit
    block = Block(*range(first + 1, limit + 5), first_line=first)
    with pytest.raises(BadRecordLimitError, match=f"max_count={limit}") as caught:
        block.settle(log)
    assert (caught.value.bad, caught.value.lines, caught.value.line) == (limit + 1, limit + 1, limit + 1)
    assert caught.value.__cause__ is not None
    assert (log.count, block.described) == (first, [limit + 1])  # nothing of the block is counted


def test_max_rate_is_taken_over_at_least_1000_lines() -> None:
    log = BadRecordLog(BadRecords(mode="skip", max_rate=0.01))
    Block(*range(1, 11)).settle(log)
    with pytest.raises(BadRecordLimitError, match=r"max_rate=0\.01") as caught:
        Block(1099, first_line=10).settle(log)
    assert (caught.value.bad, caught.value.lines) == (11, 1099)
    Block(1100, first_line=10).settle(log)
    log = BadRecordLog(BadRecords(mode="skip", max_rate=0.01))
    Block(*range(100, 10_001, 100)).settle(log)
    assert log.count == 100


def test_limits_count_from_the_start_of_a_pass() -> None:
    log = BadRecordLog(BadRecords(mode="skip", max_count=3))
    for _ in range(3):
        log.begin()
        Block(1, 2, lines=5).settle(log)
        assert (log.lines, log.count) == (5, 2)
    log.begin(lines=100, count=2)  # a resume
    Block(101, first_line=100).settle(log)
    with pytest.raises(BadRecordLimitError) as caught:
        Block(102, first_line=101).settle(log)
    assert (caught.value.bad, caught.value.lines) == (4, 102)


def quarantine(tmp_path: Path, **options: Any) -> BadRecords:
    return BadRecords(mode="quarantine", quarantine_path=tmp_path / "bad.tsv", **options)


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "bad.tsv.jsonl").read_text().splitlines()]


def test_quarantine_keeps_the_bytes_and_says_why(tmp_path: Path) -> None:
    log = BadRecordLog(quarantine(tmp_path))
    block = Block(3, 4, 9)
    block.texts = {3: b"1\t\xff1.0\x00\r", 4: memoryview(b"x"), 9: None}
    block.settle(log)
    assert (tmp_path / "bad.tsv").read_bytes() == b"1\t\xff1.0\x00\r\nx\n"
    assert entries(tmp_path)[0] == {
        "file": "día_0",
        "line": 3,
        "column": "I1",
        "reason": "not a decimal integer",
        "hint": "hint",
        "offending": "\xff1.0\x00",
        "stored": True,
    }
    assert [(e["line"], e["stored"]) for e in entries(tmp_path)] == [(3, True), (4, True), (9, False)]


def test_a_block_that_exceeds_the_limit_stores_nothing(tmp_path: Path) -> None:
    log = BadRecordLog(quarantine(tmp_path, max_count=1))
    Block(1).settle(log)
    for _ in range(2):  # a retry is refused like the first try
        with pytest.raises(BadRecordLimitError, match="2 bad records in 2 lines"):
            Block(2, first_line=1).settle(log)
    assert (log.count, (tmp_path / "bad.tsv").read_bytes()) == (1, b"1\n")


def test_a_line_is_quarantined_once_whatever_the_number_of_passes(tmp_path: Path) -> None:
    log = BadRecordLog(quarantine(tmp_path))
    for first, last in [(40, 60), (0, 50), (0, 100), (30, 70)]:  # a resume, then passes whose blocks lie otherwise
        log.begin(lines=first)
        Block(*range(first + 1, last + 1), first_line=first).settle(log)
        assert log.count == last - first
    assert sorted(e["line"] for e in entries(tmp_path)) == list(range(1, 101))
    assert len((tmp_path / "bad.tsv").read_bytes().splitlines()) == 100
    Block(7, file="day_1").settle(log)  # the same line of another file
    assert len(entries(tmp_path)) == 101


def test_a_store_that_fails_counts_nothing(tmp_path: Path) -> None:
    log = BadRecordLog(quarantine(tmp_path))
    (tmp_path / "bad.tsv.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        Block(1).settle(log)
    assert (log.lines, log.count) == (0, 0)
    (tmp_path / "bad.tsv.jsonl").rmdir()
    Block(1).settle(log)
    assert len(entries(tmp_path)) == 1


def test_a_quarantine_in_no_folder_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        BadRecordLog(BadRecords(mode="quarantine", quarantine_path=tmp_path / "absent" / "x"))


def test_readers_in_many_threads_may_share_a_quarantine(tmp_path: Path) -> None:
    policy = quarantine(tmp_path)
    logs = [BadRecordLog(policy) for _ in range(4)]
    threads = [
        threading.Thread(
            target=lambda log=log, i=i: [
                Block(n, n + 1, first_line=n - 1, file=f"day_{i}").settle(log) for n in range(1, 101, 2)
            ]
        )
        for i, log in enumerate(logs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [log.count for log in logs] == [100] * 4
    stored = (tmp_path / "bad.tsv").read_text().splitlines()
    assert stored == [str(e["line"]) for e in entries(tmp_path)]  # line and entry stand at the same place
    assert len(stored) == 400


def quarantined(path: Path) -> BadRecordLog:
    return BadRecordLog(BadRecords(mode="quarantine", quarantine_path=path))


def test_a_folder_or_a_file_beside_an_empty_one_is_no_quarantine(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        quarantined(tmp_path)
    (tmp_path / "data.tsv").write_bytes(b"1\t2\n")
    (tmp_path / "data.tsv.jsonl").touch()  # says nothing of it
    with pytest.raises(FileExistsError, match=r"data\.tsv is there, and is no quarantine"):
        quarantined(tmp_path / "data.tsv")


@pytest.mark.parametrize("name", ["bad.tsv", "link.tsv"])
def test_a_quarantine_that_is_replayed_takes_nothing_in(tmp_path: Path, name: str) -> None:
    pair.append(tmp_path / "bad.tsv", [(BadRecordError("f", 1, "c", b"x", "why", ""), b"1\t2")])
    for ending in ("tsv", "tsv.jsonl"):
        (tmp_path / f"link.{ending}").symlink_to(f"bad.{ending}")
    policy = BadRecords(mode="quarantine", quarantine_path=tmp_path / name)
    with pytest.raises(ValueError, match="is one of the files to be read; give another one"):
        CriteoFiles(tmp_path / "bad.tsv", Schema(sparse=(Sparse(name="a"), Sparse(name="b"))), bad_records=policy)
    assert (tmp_path / "bad.tsv").read_bytes() == b"1\t2\n"


def test_a_line_that_a_killed_process_did_not_finish_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    for name in ("bad", "bad.jsonl"):
        (tmp_path / name).write_bytes(b"half")
    pair.append(path, [(BadRecordError("f", 1, "c", b"x", "why", ""), b"whole")])
    assert path.read_bytes() == b"half\nwhole\n"
    assert [line[:1] for line in (tmp_path / "bad.jsonl").read_bytes().splitlines()] == [b"h", b"{"]


FULL = """
import resource, signal, sys
from pathlib import Path
from headrace.formats import quarantine
from headrace.formats.errors import BadRecordError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
record = BadRecordError("f", 1, "c", b"x", "why", "")
quarantine.append(Path(sys.argv[1]), [(record, b"first")])
for size in (2000, 100):  # the lines, or their entries, find no room
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, 4000))
    try:
        quarantine.append(Path(sys.argv[1]), [(record, b"x" * 1500)] * 2)
    except OSError as error:
        print(error.errno, error.filename)
"""


def test_what_cannot_be_stored_as_a_whole_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == [f"{errno.EFBIG} {path}", f"{errno.EFBIG} {path}.jsonl"]
    assert path.read_bytes() == b"first\n"
    assert len((tmp_path / "bad.jsonl").read_bytes().splitlines()) == 1
