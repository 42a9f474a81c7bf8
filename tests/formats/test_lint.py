"""Every bad record of every file, whatever else is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.lint import LintReport, lint
from headrace.formats.schema import Schema, Sparse
from tests.support.criteo_text import write

SCHEMA = Schema(sparse=(Sparse(name="a"), Sparse(name="b")))


def lint_texts(folder: Path, texts: list[tuple[str, bytes]], **options: int) -> LintReport:
    paths = [write(folder / name, text) for name, text in texts]
    return lint((CriteoFiles(path, SCHEMA) for path in paths), **options)


def test_good_files(tmp_path: Path) -> None:
    report = lint_texts(tmp_path, [("x", b"1\t2\n3\t4\n"), ("y", b"")])
    assert (report.files, report.rows, report.bytes, report.problems, report.clean) == (2, 2, 8, [], True)


def test_all_that_is_wrong_is_listed(tmp_path: Path) -> None:
    damaged = write(tmp_path / "b.gz", b"1\t2\n" * 1000)
    damaged.write_bytes(damaged.read_bytes()[:-6])
    paths = [write(tmp_path / "a", b"1\t2\nx\t2\n1\t0x1\n1\n"), damaged, write(tmp_path / "c", b"\n1\t2\n")]
    report = lint(CriteoFiles(path, SCHEMA) for path in paths)
    assert [(Path(p.file).name, p.line, p.column, p.kind) for p in report.problems] == [
        ("a", 2, "a", "BadRecordError"),
        ("a", 3, "b", "BadRecordError"),
        ("a", 4, "", "BadRecordError"),
        ("b.gz", 0, "", "CorruptShardError"),
        ("c", 1, "", "BadRecordError"),
    ]
    assert (report.files, report.bad_records, report.bad_files, report.clean) == (3, 4, 1, False)
    assert report.rows == 4 + 1000 + 2


@pytest.mark.parametrize("most", [0, 1, 3, 300])
def test_the_list_has_a_limit_the_counts_have_none(tmp_path: Path, most: int) -> None:
    # 200 lines of another number of columns would end a pass of a reader in any mode
    report = lint_texts(tmp_path, [("x", b"bad\n" * 200)], max_problems=most)
    assert len(report.problems) == min(most, 200)
    assert (report.bad_records, report.problems_left_out) == (200, 200 - min(most, 200))
