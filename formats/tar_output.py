"""A tar shard that appears whole or not at all: each member an Arrow IPC stream of one record batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from webdataset import TarWriter

from headrace.formats.group_output import GroupOutput

TAR_COMPRESSIONS = ("zstd", "lz4", "none")


class TarOutput(GroupOutput):
    """Groups of rows as members ``NAME-000000.arrow``; see :class:`GroupOutput`.

    The same rows give the same bytes: no times and no names of users are written. A shard without rows has one member,
    too.
    """

    def __init__(self, target: Path, schema: pa.Schema, *, compression: str, row_group_rows: int) -> None:
        super().__init__(target, schema, row_group_rows=row_group_rows)
        self._options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        self._stem = target.name.removesuffix(".tar")
        self._members = 0
        self._writer = TarWriter(self._stream, user="", group="", mtime=0, encoder=False)

    def _write_group(self, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema, options=self._options) as writer:
            writer.write_table(table.combine_chunks())
        self._writer.write({"__key__": f"{self._stem}-{self._members:06d}", "arrow": memoryview(sink.getvalue())})
        self._members += 1

    def _close(self) -> None:
        if not self._members:
            self._write_group(self._schema.empty_table())
        self._writer.close()
