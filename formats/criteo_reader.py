"""Criteo-shaped text files as decoded rows: the reader that the loader drives (see `reader.py`)."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import fs

from headrace.formats.bad_lines import NO_BAD_LINES, BadLine, BadLines
from headrace.formats.bad_records import BadRecords
from headrace.formats.criteo_lines import LineLayout, parse_lines
from headrace.formats.errors import BadRecordError
from headrace.formats.file_reader import Paths
from headrace.formats.line_faults import describe
from headrace.formats.manifest import Verify
from headrace.formats.reader import DecodedBlock
from headrace.formats.schema import Schema
from headrace.formats.store import Store
from headrace.formats.text_blocks import DEFAULT_BLOCK_BYTES, DEFAULT_MAX_LINE_BYTES, TextBlock
from headrace.formats.text_reader import TextFiles


class CriteoFiles(TextFiles):
    """Tab-separated files of one schema: labels, dense int64, sparse one-hot ids, in this order; no header.

    Parsed natively. Files, policies, manifests and counters are those of :class:`TextFiles`.
    """

    def __init__(
        self,
        paths: Paths,
        schema: Schema,
        *,
        bad_records: BadRecords | str = "raise",
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
        verify_manifest: Verify = "size",
        filesystem: fs.FileSystem | Store | None = None,
    ) -> None:
        super().__init__(
            paths,
            schema,
            bad_records=bad_records,
            block_bytes=block_bytes,
            max_line_bytes=max_line_bytes,
            verify_manifest=verify_manifest,
            filesystem=filesystem,
        )
        self._layout = LineLayout.from_schema(schema)

    def _parse(self, block: TextBlock) -> tuple[pa.RecordBatch, BadLines]:
        parsed = parse_lines(
            block.data,
            self._layout,
            first_line=block.first_line,
            lines=block.lines,
            max_line_bytes=self._max_line_bytes,
        )
        bad = parsed.faults if len(parsed.faults) else NO_BAD_LINES
        return parsed.batch, bad

    def _empty_batch(self) -> pa.RecordBatch:
        return self._layout.empty_batch()

    def _describe(self, bad: BadLine, decoded: DecodedBlock) -> BadRecordError:
        return describe(
            bad,
            file=self.files[decoded.position.file],
            layout=self._layout,
            text=decoded.text,
            text_offset=decoded.text_offset,
            max_line_bytes=self._max_line_bytes,
        )
