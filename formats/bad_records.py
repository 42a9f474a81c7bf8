"""What to do with bad records: raise, skip, or move them to a quarantine file, within limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from headrace.formats import quarantine
from headrace.formats.bad_lines import I64
from headrace.formats.checks import check_integer
from headrace.formats.errors import BadRecordError, BadRecordLimitError
from headrace.formats.line_ranges import LineRanges

BadRecordMode = Literal["raise", "skip", "quarantine"]

# A rate over a handful of lines says nothing: it is taken over at least this many.
MIN_RATE_LINES = 1_000


@dataclass(frozen=True, kw_only=True)
class BadRecords:
    """Policy for bad records; plain data, shared by as many readers as you like (each counts for itself).

    - ``raise``: the first bad record is an error;
    - ``skip``: it is counted and left out;
    - ``quarantine``: it is also appended, byte for byte, to `quarantine_path`, a file that can be read like the
      original once it is repaired, under the same header where there is one (lines of other headers go to files beside
      it); the file ``<quarantine_path>.jsonl`` says of each line where it came from and why. Only text has lines: of
      Parquet, tar shards and arrays, and of lines too long to be held, there is just the entry, with
      ``"stored": false``. A file that is there must be a quarantine, and none of those that are read: FileExistsError.

    More than `max_count` bad records, or more than ``max_rate * max(lines read, 1000)``, are an error with the counts.
    Both are counted from the start of a pass over the files (an epoch). A reader puts a line into quarantine once,
    however often it reads it.
    """

    mode: BadRecordMode = "raise"
    max_count: int | None = None
    max_rate: float | None = None
    quarantine_path: str | Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in get_args(BadRecordMode):
            raise ValueError(f"bad records: mode={self.mode!r} is not one of 'raise', 'skip', 'quarantine'")
        if self.max_count is not None:
            count = check_integer("bad records: max_count", self.max_count, 0, 2**63 - 1)
            object.__setattr__(self, "max_count", count)
        if self.max_rate is not None:
            if isinstance(self.max_rate, bool) or not isinstance(self.max_rate, (int, float)):
                raise TypeError(f"bad records: max_rate={self.max_rate!r} is not a number")
            if not 0 <= self.max_rate <= 1:
                raise ValueError(f"bad records: max_rate={self.max_rate!r} is not between 0 and 1")
        if (self.mode == "quarantine") != (self.quarantine_path is not None):
            raise ValueError(
                "bad records: mode='quarantine' and quarantine_path go together; give "
                'BadRecords(mode="quarantine", quarantine_path="bad.tsv")'
            )

    @classmethod
    def of(cls, policy: BadRecords | str) -> BadRecords:
        """A policy from a policy, or from ``"raise"`` or ``"skip"``; a quarantine needs a path, thus a policy."""
        if isinstance(policy, BadRecords):
            return policy
        if not isinstance(policy, str):
            raise TypeError(f"bad records: expected a BadRecords or the name of a mode, got {type(policy).__name__}")
        return cls(mode=policy)  # type: ignore[arg-type]

    def of_side(self, name: str) -> BadRecords:
        """The same policy for other files of a dataset, whose lines are not those of the main ones: a quarantine of
        their own, ``bad.csv`` -> ``bad.NAME.csv``, so that each can be repaired and read as what it is."""
        if self.quarantine_path is None:
            return self
        path = Path(self.quarantine_path)
        return replace(self, quarantine_path=path.with_name(f"{path.stem}.{name}{path.suffix}"))

    def parameters(self) -> dict[str, Any]:
        """What of the policy tells which rows come out, as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "quarantine_path"}


# The error and the raw line (no line feed; None when it was too long to be held) of the i-th bad line of a block.
Describe = Callable[[int], tuple[BadRecordError, bytes | memoryview | None]]


class BadRecordLog:
    """Bad records met by one reader: counts them, and carries out its policy. One thread at a time.

    A block is first checked, then stored and counted: one that raises has left no trace, and may be tried again.
    Nothing is described but what is told to someone.
    """

    def __init__(self, policy: BadRecords) -> None:
        self.policy = policy
        self._lines = self._count = 0
        self._settled: defaultdict[str, LineRanges] = defaultdict(LineRanges)
        path = policy.quarantine_path
        self._path = None if path is None else Path(path).absolute()
        if self._path is not None:
            quarantine.check_path(self._path)

    @property
    def lines(self) -> int:
        """Lines settled in this pass, bad ones counted."""
        return self._lines

    @property
    def count(self) -> int:
        """Bad records settled in this pass."""
        return self._count

    def begin(self, *, lines: int = 0, count: int = 0) -> None:
        """A new pass, of which `lines` lines, `count` of them bad, were settled before."""
        self._lines, self._count = lines, count

    def check(self, first_line: int, bad: I64, describe: Describe) -> None:
        """Raise what the policy says of a block that begins at the 0-based `first_line`; changes nothing.

        bad: int64 [n], 1-based physical lines of its bad records, ascending
        """
        if not len(bad):
            return
        if self.policy.mode == "raise":
            raise describe(0)[0]
        counts = np.arange(self._count + 1, self._count + 1 + len(bad))
        lines_read = bad + (self._lines - first_line)
        at, limit = self._exceeded(counts, lines_read)
        if limit:
            record = describe(at)[0]
            raise BadRecordLimitError(record, int(counts[at]), int(lines_read[at]), limit) from record

    def settle(
        self, file: str, first_line: int, lines: int, bad: I64, describe: Describe, header: bytes | None = None
    ) -> None:
        """Count a block of `lines` lines of `file`, which may have a `header`, that was checked, and store what was not
        stored before."""
        if self._path is not None:
            settled = self._settled[file]
            new = [i for i, line in enumerate(bad.tolist()) if line - 1 not in settled]
            if new:
                quarantine.append(self._path, map(describe, new), header)
            settled.add(first_line, first_line + lines)
        self._lines += lines
        self._count += len(bad)

    def _exceeded(self, counts: I64, lines_read: I64) -> tuple[int, str]:
        """The first bad record that exceeds a limit, and which; the limit is "" when there is none."""
        count, rate = self.policy.max_count, self.policy.max_rate
        over_count = counts > (np.iinfo(np.int64).max if count is None else count)
        over_rate = counts > np.maximum(lines_read, MIN_RATE_LINES) * (np.inf if rate is None else rate)
        over = over_count | over_rate
        at = int(over.argmax())
        if not over[at]:
            return 0, ""
        if over_count[at]:
            return at, f"max_count={count}"
        return at, f"max_rate={rate} of at least {MIN_RATE_LINES} lines"
