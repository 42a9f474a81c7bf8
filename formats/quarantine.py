"""Quarantine files: bad lines as they were, and beside them a ``.jsonl`` file that says of each where it came from."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.formats.atomic_file import named_errors
from headrace.formats.errors import BadRecordError

SUFFIX = ".jsonl"
_KEYS = ("file", "line", "column", "reason", "hint", "offending", "stored")
_MAX_ENTRY_BYTES = 1 << 16
# Readers may share a file: the lines and entries of one block stay together.
_appending = threading.Lock()


def check_path(path: Path) -> None:
    """FileExistsError for a file that is no quarantine's, such as somebody's data: it must not grow by bad lines."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"quarantine_path={str(path)!r}: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"quarantine_path={str(path)!r}: is a folder, not a file to write")
    with _appending:  # a block that another reader is storing is whole then
        entries = Path(f"{path}{SUFFIX}")
        other = next((p for p in (path, entries) if _holds_something(p)), None)
        if other is not None and not _holds_entries(str(entries)):
            raise FileExistsError(
                f"quarantine_path={str(path)!r}: {other} is there, and is no quarantine; give the name of a new file"
            )


def _holds_something(path: Path) -> bool:
    """Whether it is there, empty files aside."""
    return path.exists() and not (path.is_file() and path.stat().st_size == 0)


def append(
    path: Path, records: Iterable[tuple[BadRecordError, bytes | memoryview | None]], header: bytes | None = None
) -> None:
    """Append raw lines (without their line feed; None: too long to be held, described only) and their entries.

    `header` is the first line of the file that they are from, where it names the columns: the file begins with it, so
    that it can be read as that one. Lines under another header, which would be read as other columns, go to a file
    beside, whose name has the header's hash: ``bad.csv``, ``bad.0123abcd.csv``.

    The files are opened each time, so that a crash or a forgotten close loses nothing; bad records are rare. What
    cannot be written as a whole is taken back. Entries are written first: they are what tells a quarantine from other
    files.
    """
    lines, entries = [], []
    for record, line in records:
        if line is not None:
            lines.append(bytes(line) + b"\n")
        entries.append(_entry(record, stored=line is not None))
    with _appending:
        if header is not None and not _has_header(path, header):
            path = path.with_name(f"{path.stem}.{hashlib.blake2b(header, digest_size=4).hexdigest()}{path.suffix}")
        with _open(Path(f"{path}{SUFFIX}")) as described, _open(path) as raw:
            if header is not None and not raw.tell():
                lines.insert(0, header + b"\n")
            with _all_or_nothing(described, entries), _all_or_nothing(raw, lines):
                pass


def _open(path: Path) -> io.FileIO:
    """The file, at its end; a line that a killed process did not finish is ended."""
    file = io.FileIO(path, "ab+")
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        file.write(b"\n")
    return file


def _has_header(path: Path, header: bytes) -> bool:
    """Whether lines under this header may stand in the file: none do yet, or it begins with the same one."""
    try:
        with open(path, "rb") as file:
            return file.readline(len(header) + 1) in (b"", header + b"\n")
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def _all_or_nothing(file: io.FileIO, lines: list[bytes]) -> Iterator[None]:
    """Append the lines; they are taken back when that, or what is done inside, fails."""
    before = file.tell()
    left = memoryview(b"".join(lines))
    try:
        with named_errors(str(file.name)):
            while left:
                left = left[file.write(left) or 0 :]
        yield
    except BaseException:
        os.ftruncate(file.fileno(), before)
        raise


def _entry(record: BadRecordError, *, stored: bool) -> bytes:
    offending = record.offending.decode("latin-1")
    values = (record.file, record.line, record.column, record.reason, record.hint, offending, stored)
    return json.dumps(dict(zip(_KEYS, values, strict=True))).encode() + b"\n"


def is_quarantine(path: str) -> bool:
    """Whether `path` is one of such a pair: its name may be any, the entries beside it are what gives it away."""
    if path.endswith(SUFFIX):
        return os.path.exists(path[: -len(SUFFIX)]) and _holds_entries(path)
    return _holds_entries(path + SUFFIX)


def _holds_entries(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            entry = json.loads(file.readline(_MAX_ENTRY_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and tuple(entry) == _KEYS
