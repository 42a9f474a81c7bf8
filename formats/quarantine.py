"""Quarantine files: bad lines as they were, and beside them a ``.jsonl`` file that says of each where it came from."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from headrace.formats.errors import BadRecordError

SUFFIX = ".jsonl"
_KEYS = ("file", "line", "column", "reason", "hint", "offending", "stored")
_MAX_ENTRY_BYTES = 1 << 16
# Readers may share a file: the lines and entries of one block stay together.
_appending = threading.Lock()


def refuse_others(path: Path) -> None:
    """FileExistsError for a path where something lies that is no quarantine: nothing is appended to other files."""
    with _appending:  # a block that another reader is storing is whole then
        entries = Path(f"{path}{SUFFIX}")
        if (other := next((p for p in (path, entries) if _holds_something(p)), None)) and not _holds_entries(
            str(entries)
        ):
            raise FileExistsError(
                f"quarantine_path={str(path)!r}: {other} is there, and is no quarantine; give the name of a new file"
            )


def _holds_something(path: Path) -> bool:
    """Whether it is there, empty files aside."""
    return path.exists() and not (path.is_file() and path.stat().st_size == 0)


def append(path: Path, records: Iterable[tuple[BadRecordError, bytes | memoryview | None]]) -> None:
    """Append raw lines (without their line feed; None: too long to be held, described only) and their entries.

    The files are opened each time, so that a crash or a forgotten close loses nothing; bad records are rare. Entries
    are written first: they are what tells a quarantine from other files.
    """
    lines, entries = [], []
    for record, line in records:
        if line is not None:
            lines.append(bytes(line) + b"\n")
        entries.append(_entry(record, stored=line is not None))
    with _appending:
        for name, parts in ((f"{path}{SUFFIX}", entries), (str(path), lines)):
            with open(name, "ab") as file:
                file.write(b"".join(parts))


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
