"""Check files against a schema: every bad record up to a limit, damage, and what manifests say; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.formats.checks import check_integer
from headrace.formats.errors import BadRecordError, ColumnMismatchError, CorruptShardError, ManifestError
from headrace.formats.file_reader import FileReader


@dataclass(frozen=True)
class Problem:
    """Something wrong: a bad record (`line` > 0), or a file as a whole. `message` is for people."""

    file: str
    line: int
    column: str
    kind: str
    message: str


@dataclass
class LintReport:
    """What was found; the counts are of everything read, `problems` stops at the limit."""

    files: int = 0
    rows: int = 0
    bad_records: int = 0
    bad_files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    problems_left_out: int = 0

    @property
    def clean(self) -> bool:
        return not self.bad_records and not self.bad_files


def lint(
    readers: Iterator[FileReader[Any]], *, max_problems: int = 100, of_all: ManifestError | None = None
) -> LintReport:
    """Read what each reader has, to the end, whatever is wrong; a file that cannot be read on does not stop the next.

    Give a reader for each file; their policies for bad records are not applied. `of_all` is what is wrong with the
    files together, such as one that a manifest lists and that is missing; it counts as a bad file.
    """
    check_integer("max_problems", max_problems, 0, 1 << 30)
    report = LintReport()
    if of_all is not None:
        _add_bad_file(report, max_problems, of_all)
    for reader in readers:
        report.files += len(reader.files)
        try:
            _lint_one(reader, report, max_problems)
        except (CorruptShardError, ColumnMismatchError, ManifestError) as error:
            _add_bad_file(report, max_problems, error)
    return report


def _lint_one(reader: FileReader[Any], report: LintReport, max_problems: int) -> None:
    for block in reader.raw_blocks():
        decoded = reader.decode(block)
        report.rows += decoded.lines
        report.bytes += decoded.next_position.byte_offset - decoded.position.byte_offset
        report.bad_records += len(decoded.bad)
        room = max(0, max_problems - len(report.problems))
        for error, _ in zip(reader.bad_records_of(decoded), range(min(room, len(decoded.bad))), strict=False):
            _add(report, max_problems, _problem(error))
        report.problems_left_out += max(0, len(decoded.bad) - room)


def _problem(error: BadRecordError) -> Problem:
    return Problem(error.file, error.line, error.column, "BadRecordError", str(error))


def _add_bad_file(
    report: LintReport, max_problems: int, error: CorruptShardError | ColumnMismatchError | ManifestError
) -> None:
    report.bad_files += 1
    column = error.column if isinstance(error, ColumnMismatchError) else ""
    _add(report, max_problems, Problem(str(error.path), 0, column, type(error).__name__, str(error)))


def _add(report: LintReport, max_problems: int, problem: Problem) -> None:
    if len(report.problems) < max_problems:
        report.problems.append(problem)
    else:
        report.problems_left_out += 1
