"""What may be wrong with files, as exceptions with plain attributes; all of them can be pickled."""

from __future__ import annotations

import errno
from typing import Any

MAX_EXCERPT_BYTES = 80


def excerpt(data: bytes | memoryview) -> bytes:
    """At most 80 bytes of `data`, with dots in place of the rest."""
    if len(data) <= MAX_EXCERPT_BYTES:
        return bytes(data)
    return bytes(data[: MAX_EXCERPT_BYTES - 3]) + b"..."


class BadRecordError(ValueError):
    """A record that does not fit the schema.

    `line` is the 1-based physical line, `column` the column's name ("" when the whole line is at fault), `offending`
    the offending bytes (at most 80), `reason` what is wrong with them, `hint` what to do ("" when nothing is known).
    """

    def __init__(self, file: str, line: int, column: str, offending: bytes, reason: str, hint: str = "") -> None:
        self.file = file
        self.line = line
        self.column = column
        self.offending = excerpt(offending)
        self.reason = reason
        self.hint = hint
        super().__init__(self._message())

    def _message(self) -> str:
        column = f", column {self.column}" if self.column else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.file}, line {self.line}{column}: {self.offending!r}: {self.reason}{hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.line, self.column, self.offending, self.reason, self.hint)


class BadRecordLimitError(BadRecordError):
    """More bad records than the policy allows; the attributes of :class:`BadRecordError` are those of the last one.

    `bad` records among the first `lines` lines were bad; `limit` says in words what was allowed.
    """

    def __init__(self, record: BadRecordError, bad: int, lines: int, limit: str) -> None:
        self.bad = bad
        self.lines = lines
        self.limit = limit
        super().__init__(record.file, record.line, record.column, record.offending, record.reason, record.hint)

    def _message(self) -> str:
        return f"{self.bad} bad records in {self.lines} lines, allowed: {self.limit}; the last: {super()._message()}"

    def __reduce__(self) -> tuple[Any, ...]:
        record = BadRecordError(self.file, self.line, self.column, self.offending, self.reason, self.hint)
        return type(self), (record, self.bad, self.lines, self.limit)


class CorruptShardError(OSError):
    """A file whose bytes are damaged or cut; what came before was delivered.

    `byte_offset` is the position in the file as stored (compressed, for gzip) near which the damage was met,
    `rows_salvaged` the number of whole lines before it.
    """

    def __init__(self, path: str, byte_offset: int, rows_salvaged: int, reason: str) -> None:
        self.path = path
        self.byte_offset = byte_offset
        self.rows_salvaged = rows_salvaged
        self.reason = reason
        super().__init__(f"{path}: {reason} at byte {byte_offset}; {rows_salvaged} rows were read before it")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.byte_offset, self.rows_salvaged, self.reason)


class ManifestError(ValueError):
    """A manifest that cannot be trusted, or a file that is not what its manifest says. `path` is the one at fault."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class ColumnMismatchError(ValueError):
    """A file whose columns are not those that the schema declares; nothing of it was read."""

    def __init__(self, path: str, column: str, reason: str) -> None:
        self.path = path
        self.column = column
        self.reason = reason
        super().__init__(f"{path}, column {column!r}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.column, self.reason)


class StoreReadError(OSError):
    """Bytes `first_byte` to `last_byte` of a stored file did not come, in `attempts` attempts; `reason` is the last's.

    It says nothing against the file: the read may succeed later.
    """

    def __init__(self, path: str, first_byte: int, last_byte: int, attempts: int, reason: str) -> None:
        self.path = path
        self.first_byte = first_byte
        self.last_byte = last_byte
        self.attempts = attempts
        self.reason = reason
        super().__init__(f"{path}: bytes {first_byte}..{last_byte} did not come in {attempts} attempts: {reason}")
        self.errno = errno.EIO  # an error of the system's, not of the data

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.first_byte, self.last_byte, self.attempts, self.reason)


class ReadInterruptedError(OSError):
    """The reader was told to stop while it waited for a file; nothing is wrong with the file."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.EINTR
