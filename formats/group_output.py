"""A converted file that appears whole or not at all: rows gathered into groups, and the hash of its bytes."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from headrace.formats.atomic_file import AtomicFile
from headrace.formats.hashed_stream import HashedStream
from headrace.formats.manifest import ManifestFile

_OutputT = TypeVar("_OutputT", bound="GroupOutput")


class GroupOutput(ABC):
    """Record batches of one schema as groups of `row_group_rows` rows (the last one shorter).

    States: open --finish--> on disk --publish--> named; leaving the context in another state removes the file. At most
    a group and a batch are held.
    """

    def __init__(self, target: Path, schema: pa.Schema, *, row_group_rows: int) -> None:
        self._schema = schema
        self._row_group_rows = row_group_rows
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._rows = 0
        self._file = AtomicFile(target)
        self._stream = HashedStream(self._file)
        self._closed = False

    @abstractmethod
    def _write_group(self, table: pa.Table) -> None:
        """Write the rows of a group to the stream."""

    @abstractmethod
    def _close(self) -> None:
        """Write what ends the file."""

    def append(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            part = batch.slice(0, self._row_group_rows - self._waiting_rows)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            batch = batch.slice(part.num_rows)
            if self._waiting_rows == self._row_group_rows:
                self._write_waiting()

    def _write_waiting(self) -> None:
        self._write_group(pa.Table.from_batches(self._waiting, self._schema))
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows = [], 0

    def finish(self) -> ManifestFile:
        """Write what waits, flush to disk, and describe the file."""
        if self._waiting:
            self._write_waiting()
        self._closed = True
        self._close()
        self._file.finish()
        return ManifestFile(bytes=self._stream.bytes, rows=self._rows, blake2b=self._stream.hasher.hexdigest())

    def publish(self) -> None:
        """Give the finished file its name."""
        self._file.publish()

    def __enter__(self: _OutputT) -> _OutputT:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:  # given up: what ends the file is removed with it; writers dropped open would complain
            with contextlib.suppress(pa.ArrowException, OSError):
                self._close()
        self._file.__exit__(kind, error, trace)
