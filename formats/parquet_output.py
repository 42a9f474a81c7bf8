"""A Parquet file that appears whole or not at all, with page checksums and the hash of its bytes."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.atomic_file import AtomicFile
from headrace.formats.hashed_stream import HashedStream
from headrace.formats.manifest import ManifestFile

COMPRESSIONS = ("zstd", "snappy", "none")

_LIMITS_ROWS = "max_rows_per_page" in inspect.signature(pq.ParquetWriter.__init__).parameters


def _pages(row_group_rows: int) -> dict[str, Any]:
    """Options that let a page end at 1 MiB, not at the 20,000 rows where newer Arrow ends it: to set a reader up for a
    page costs it a tenth of its time then."""
    return {"max_rows_per_page": row_group_rows} if _LIMITS_ROWS else {}


class ParquetOutput:
    """Record batches of one schema as row groups of `row_group_rows` rows (the last one shorter).

    States: open --finish--> on disk --publish--> named; leaving the context in another state removes the file. At most
    a row group and a batch are held.
    """

    def __init__(self, target: Path, schema: pa.Schema, *, compression: str, row_group_rows: int) -> None:
        self._schema = schema
        self._row_group_rows = row_group_rows
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._rows = 0
        self._file = AtomicFile(target)
        self._stream = HashedStream(self._file)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._stream, mode="w"),
            schema,
            compression=compression,
            write_page_checksum=True,
            **_pages(row_group_rows),
        )

    def append(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            part = batch.slice(0, self._row_group_rows - self._waiting_rows)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            batch = batch.slice(part.num_rows)
            if self._waiting_rows == self._row_group_rows:
                self._write_group()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table, row_group_size=self._row_group_rows)
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows = [], 0

    def finish(self) -> ManifestFile:
        """Write what waits, flush to disk, and describe the file."""
        if self._waiting:
            self._write_group()
        self._writer.close()
        self._file.finish()
        return ManifestFile(bytes=self._stream.bytes, rows=self._rows, blake2b=self._stream.hasher.hexdigest())

    def publish(self) -> None:
        """Give the finished file its name."""
        self._file.publish()

    def __enter__(self) -> ParquetOutput:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer.is_open:  # given up: what its footer says is removed with it
            with contextlib.suppress(pa.ArrowException, OSError):
                self._writer.close()
        self._file.__exit__(kind, error, trace)
