"""A tar shard that appears whole or not at all: each member an Arrow IPC stream of one record batch."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import pyarrow as pa
from webdataset import TarWriter

from headrace.formats.atomic_file import AtomicFile
from headrace.formats.hashed_stream import HashedStream
from headrace.formats.manifest import ManifestFile

TAR_COMPRESSIONS = ("zstd", "lz4", "none")


class TarOutput:
    """Record batches of one schema as members of `row_group_rows` rows (the last one shorter), ``NAME-000000.arrow``.

    The same rows give the same bytes: no times and no names of users are written. States: open --finish--> on disk
    --publish--> named; leaving the context in another state removes the file. At most a member and a batch are held.
    """

    def __init__(self, target: Path, schema: pa.Schema, *, compression: str, row_group_rows: int) -> None:
        self._schema = schema
        self._row_group_rows = row_group_rows
        self._options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        self._stem = target.name.removesuffix(".tar")
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._rows = self._members = 0
        self._file = AtomicFile(target)
        self._stream = HashedStream(self._file)
        self._writer = TarWriter(self._stream, user="", group="", mtime=0, encoder=False)

    def append(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            part = batch.slice(0, self._row_group_rows - self._waiting_rows)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            batch = batch.slice(part.num_rows)
            if self._waiting_rows == self._row_group_rows:
                self._write_group()

    def _write_group(self) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema, options=self._options) as writer:
            writer.write_table(pa.Table.from_batches(self._waiting, self._schema).combine_chunks())
        self._writer.write({"__key__": f"{self._stem}-{self._members:06d}", "arrow": memoryview(sink.getvalue())})
        self._members += 1
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows = [], 0

    def finish(self) -> ManifestFile:
        """Write what waits (a shard without rows has one member, too), flush to disk, and describe the file."""
        if self._waiting or not self._members:
            self._write_group()
        self._writer.close()
        self._file.finish()
        return ManifestFile(bytes=self._stream.bytes, rows=self._rows, blake2b=self._stream.hasher.hexdigest())

    def publish(self) -> None:
        """Give the finished file its name."""
        self._file.publish()

    def __enter__(self) -> TarOutput:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)
