"""A Parquet file that appears whole or not at all, with page checksums and the hash of its bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.group_output import GroupOutput

COMPRESSIONS = ("zstd", "snappy", "none")


class ParquetOutput(GroupOutput):
    """Groups of rows as row groups; see :class:`GroupOutput`."""

    def __init__(self, target: Path, schema: pa.Schema, *, compression: str, row_group_rows: int) -> None:
        super().__init__(target, schema, row_group_rows=row_group_rows)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._stream, mode="w"), schema, compression=compression, write_page_checksum=True
        )

    def _write_group(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=self._row_group_rows)

    def _close(self) -> None:
        self._writer.close()
