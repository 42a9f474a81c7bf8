"""What to do with bad records: raise, skip, or move them to a quarantine file, within limits."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from headrace.formats.errors import BadRecordError, BadRecordLimitError

BadRecordMode = Literal["raise", "skip", "quarantine"]

# A rate over a handful of lines says nothing: it is taken over at least this many.
MIN_RATE_LINES = 1_000


@dataclass(frozen=True, kw_only=True)
class BadRecords:
    """Policy for bad records; plain data, shared by as many readers as you like (each counts for itself).

    - ``raise``: the first bad record is an error;
    - ``skip``: it is counted and left out;
    - ``quarantine``: it is also appended, byte for byte, to `quarantine_path`, a file that can be read like the
      original once it is repaired; the file ``<quarantine_path>.jsonl`` says of each line where it came from and why.

    More than `max_count` bad records, or more than ``max_rate * max(lines read, 1000)``, are an error with the counts.
    """

    mode: BadRecordMode = "raise"
    max_count: int | None = None
    max_rate: float | None = None
    quarantine_path: str | Path | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(BadRecordMode):
            raise ValueError(f"bad records: mode={self.mode!r} is not one of 'raise', 'skip', 'quarantine'")
        count = self.max_count
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise ValueError(f"bad records: max_count={count!r} is not a number of records")
        if self.max_rate is not None and not 0 <= self.max_rate <= 1:
            raise ValueError(f"bad records: max_rate={self.max_rate!r} is not between 0 and 1")
        if (self.mode == "quarantine") != (self.quarantine_path is not None):
            raise ValueError(
                "bad records: mode='quarantine' and quarantine_path go together: "
                "BadRecords(mode='quarantine', quarantine_path='bad.tsv')"
            )

    @classmethod
    def of(cls, policy: BadRecords | str) -> BadRecords:
        """A policy from a policy, or from the name of its mode."""
        if isinstance(policy, BadRecords):
            return policy
        if not isinstance(policy, str):
            raise TypeError(f"bad records: expected a BadRecords or the name of a mode, got {type(policy).__name__}")
        return cls(mode=policy)  # type: ignore[arg-type]


class BadRecordLog:
    """Bad records met by one reader: counts them, and carries out its policy. Thread-safe."""

    def __init__(self, policy: BadRecords) -> None:
        self.policy = policy
        self._count = 0
        self._lock = threading.Lock()
        path = policy.quarantine_path
        self._path = None if path is None else Path(path).absolute()
        if self._path is not None and not self._path.parent.is_dir():
            raise FileNotFoundError(f"quarantine_path={str(path)!r}: there is no folder {self._path.parent}")

    @property
    def count(self) -> int:
        """Bad records so far, the one that exceeded a limit included."""
        return self._count

    def add(self, record: BadRecordError, line: bytes | memoryview | None, *, lines_read: int) -> None:
        """Raise `record`, or leave it out and return.

        `line` is the raw line without its line feed; None when it was too long to be held: it is then described in the
        ``.jsonl`` file only. `lines_read` counts the lines up to and including this one.
        """
        if self.policy.mode == "raise":
            raise record
        with self._lock:
            self._count += 1
            if self._path is not None:
                self._store(self._path, record, line)
            exceeded = self._exceeded(lines_read)
        if exceeded:
            raise BadRecordLimitError(record, self._count, lines_read, exceeded) from record

    def _exceeded(self, lines_read: int) -> str:
        count, rate = self.policy.max_count, self.policy.max_rate
        if count is not None and self._count > count:
            return f"max_count={count}"
        if rate is not None and self._count > rate * max(lines_read, MIN_RATE_LINES):
            return f"max_rate={rate} of at least {MIN_RATE_LINES} lines"
        return ""

    def _store(self, path: Path, record: BadRecordError, line: bytes | memoryview | None) -> None:
        """Opened for each record, so that a crash or a forgotten close loses nothing; bad records are rare."""
        with open(path, "ab") as raw:
            raw.write(b"" if line is None else bytes(line) + b"\n")
        entry = {
            "file": record.file,
            "line": record.line,
            "column": record.column,
            "reason": record.reason,
            "hint": record.hint,
            "offending": record.offending.decode("latin-1"),
            "stored": line is not None,
        }
        with open(f"{path}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
