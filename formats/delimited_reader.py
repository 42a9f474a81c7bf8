"""Delimited text files of a declared format as decoded rows (see `reader.py`)."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import fs

from headrace.formats.bad_lines import BadLine, BadLines
from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_type
from headrace.formats.delimited_format import TextFormat
from headrace.formats.delimited_lines import DelimitedLayout, parse_delimited
from headrace.formats.errors import BadRecordError, CorruptShardError
from headrace.formats.file_kinds import HEAD_BYTES, kind_of
from headrace.formats.file_reader import Paths
from headrace.formats.line_faults import describe
from headrace.formats.manifest import Verify
from headrace.formats.reader import DecodedBlock, FilePosition
from headrace.formats.schema import Schema
from headrace.formats.store import Store
from headrace.formats.text_blocks import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_MAX_LINE_BYTES,
    UTF8_BOM,
    TextBlock,
    text_blocks,
)
from headrace.formats.text_reader import TextFiles

_HEAD_BYTES = 1 << 16


class DelimitedFiles(TextFiles):
    """Files of `text_format`, of which `schema` takes columns by name: CSV, TSV and the like, without quotes.

    Files, policies, manifests and counters are those of :class:`TextFiles`. A header is line 1, and no row: it counts
    neither in `rows_in` nor in `num_rows`, but as a line of the file in line numbers and in a manifest. A file that
    lacks a column raises :class:`ColumnMismatchError` when it is opened; an empty file has no header and no rows.
    """

    def __init__(
        self,
        paths: Paths,
        schema: Schema,
        text_format: TextFormat,
        *,
        bad_records: BadRecords | str = "raise",
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
        verify_manifest: Verify = "size",
        filesystem: fs.FileSystem | Store | None = None,
    ) -> None:
        check_type("text_format", text_format, TextFormat, 'a headrace.TextFormat, as TextFormat(name="x", ...)')
        super().__init__(
            paths,
            schema,
            bad_records=bad_records,
            block_bytes=block_bytes,
            max_line_bytes=max_line_bytes,
            verify_manifest=verify_manifest,
            filesystem=filesystem,
        )
        self.text_format = text_format
        self._columns_of_file = schema
        self._header_lines = int(text_format.header)
        self._layouts: dict[int, DelimitedLayout] = {}
        self._headers: dict[int, bytes] = {}
        self._layout_of_all: DelimitedLayout | None = None
        if not text_format.header:
            name = self.files[0] if self.files else str(self._found)
            self._layout_of_all = DelimitedLayout.of(name, schema, text_format, text_format.columns)

    def _rows_of(self, file: int) -> int | None:
        lines = super()._rows_of(file)
        return max(0, lines - self._header_lines) if lines is not None else None

    def _first_row(self, file: int) -> FilePosition:
        if not self.text_format.header:
            return FilePosition(file, 0, 0)
        line, end = self._read_header(file)
        if not end:
            return FilePosition(file, 0, 0)
        self._headers[file] = line
        header = line.decode("utf-8", "backslashreplace")
        names = tuple(name.strip() for name in header.split(self.text_format.separator))
        self._layouts[file] = DelimitedLayout.of(self.files[file], self._columns_of_file, self.text_format, names)
        return FilePosition(file, end, 1)

    def _read_header(self, file: int) -> tuple[bytes, int]:
        """The first line of a file, and where the next one begins; (b"", 0) for an empty file."""
        path = self.files[file]
        head = text_blocks(
            path,
            file=file,
            file_bytes=self._sizes[file],
            block_bytes=_HEAD_BYTES,
            max_line_bytes=self._max_line_bytes,
            store=self.store,
        )
        block = next(head, None)
        head.close()  # type: ignore[attr-defined]
        if block is None:
            return b"", 0
        text = bytes(block.data)
        line = text.split(b"\n", 1)[0]
        if (kind := kind_of(text[:HEAD_BYTES])) or b"\0" in line:
            raise CorruptShardError(path, 0, 0, f"no text with a header (this is {kind or 'binary data'})")
        if (size := max(len(line), block.oversized_bytes)) > self._max_line_bytes:
            raise CorruptShardError(path, 0, 0, f"no header: the first line has {size} bytes")
        mark = block.num_bytes - len(text)  # a byte order mark is covered, but not part of the line
        assert mark in (0, len(UTF8_BOM))
        end = min(mark + len(line) + 1, block.num_bytes)
        return line.removesuffix(b"\r"), end

    def _header_of(self, file: int) -> bytes | None:
        return self._headers.get(file)

    def _parse(self, block: TextBlock) -> tuple[pa.RecordBatch, BadLines]:
        return parse_delimited(
            block.data,
            self._layout(block.file),
            first_line=block.first_line,
            max_line_bytes=self._max_line_bytes,
        )

    def _empty_batch(self) -> pa.RecordBatch:
        return (self._layout_of_all or next(iter(self._layouts.values()))).empty_batch()

    def _layout(self, file: int) -> DelimitedLayout:
        return self._layout_of_all or self._layouts[file]

    def _describe(self, bad: BadLine, decoded: DecodedBlock) -> BadRecordError:
        file = decoded.position.file
        return describe(
            bad,
            file=self.files[file],
            layout=self._layout(file),
            text=decoded.text,
            text_offset=decoded.text_offset,
            max_line_bytes=self._max_line_bytes,
        )
