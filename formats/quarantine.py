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


def append(path: Path, records: Iterable[tuple[BadRecordError, bytes | memoryview | None]]) -> None:
    """Append raw lines (without their line feed; None: too long to be held, described only) and their entries.

    The files are opened each time, so that a crash or a forgotten close loses nothing; bad records are rare.
    """
    with _appending, open(path, "ab") as raw, open(f"{path}{SUFFIX}", "ab") as entries:
        for record, line in records:
            if line is not None:
                raw.write(bytes(line) + b"\n")
            entries.write(_entry(record, stored=line is not None))


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
