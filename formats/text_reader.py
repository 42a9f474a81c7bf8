"""Text files of one record a line as decoded rows: what the readers of all such formats share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa
from pyarrow import fs

from headrace.formats.bad_lines import BadLine, BadLines
from headrace.formats.bad_records import BadRecords, Describe
from headrace.formats.criteo_lines import Reason
from headrace.formats.errors import BadRecordError
from headrace.formats.file_reader import FileReader, Paths, good_ranges
from headrace.formats.manifest import Verify
from headrace.formats.reader import DecodedBlock, FilePosition
from headrace.formats.rows import RowBlock, Source
from headrace.formats.schema import Schema
from headrace.formats.store import Store
from headrace.formats.text_blocks import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_MAX_LINE_BYTES,
    TextBlock,
    check_sizes,
    text_blocks,
)

# A file whose first lines all have another number of columns is another kind of file: that is never skipped in silence.
MISMATCHED_LINES = 100


class TextFiles(FileReader[TextBlock]):
    """Files of lines, plain or compressed (see :func:`text_blocks`); see :class:`FileReader`.

    Whatever the mode of `bad_records`, a file whose first 100 lines all have another number of columns than expected is
    an error: it was not written for this schema.
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
        check_sizes(block_bytes=block_bytes, max_line_bytes=max_line_bytes)
        super().__init__(paths, schema, bad_records=bad_records, verify_manifest=verify_manifest, filesystem=filesystem)
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes
        self._mismatched = 0

    def begin(self, *, rows_in: int = 0, rows_skipped: int = 0) -> None:
        super().begin(rows_in=rows_in, rows_skipped=rows_skipped)
        self._mismatched = 0

    def _first_row(self, file: int) -> FilePosition:
        """Where the first row of a file begins: behind its header, where the format has one."""
        return FilePosition(file, 0, 0)

    def _file_blocks(self, start: FilePosition) -> Generator[TextBlock, None, None]:
        first = self._first_row(start.file)
        if start.line < first.line:
            start = first
        rows = start.line
        for block in self._lines(start):
            yield block
            rows = block.next_line
        self._check_end(start.file, rows)

    def _lines(self, start: FilePosition) -> Iterator[TextBlock]:
        return text_blocks(
            self.files[start.file],
            file=start.file,
            file_bytes=self._sizes[start.file],
            start_offset=start.byte_offset,
            start_line=start.line,
            block_bytes=self._block_bytes,
            max_line_bytes=self._max_line_bytes,
            store=self.store,
        )

    def _rows_of_block(self, block: TextBlock) -> tuple[int, int]:
        return block.first_line, block.next_line

    def _decode(self, block: TextBlock) -> DecodedBlock:
        if block.oversized_bytes:
            end = len(block.data)
            line = BadLine(block.first_line + 1, -1, Reason.OVERSIZED, 0, end, 0, end, 0)
            data, bad = self._empty_batch(), BadLines.of([line])
        else:
            data, bad = self._parse(block)
        ranges = good_ranges(block.file, block.first_line, block.lines, bad.numbers - 1)
        return DecodedBlock(
            rows=RowBlock(data, Source(self.files, ranges), self._row_bytes),
            position=FilePosition(block.file, block.byte_offset, block.first_line),
            next_position=FilePosition(block.file, block.next_offset, block.next_line),
            lines=block.lines,
            bad=bad,
            text=block.data if len(bad) else memoryview(b""),
            text_offset=block.byte_offset if block.oversized_bytes else block.next_offset - len(block.data),
        )

    @abstractmethod
    def _parse(self, block: TextBlock) -> tuple[pa.RecordBatch, BadLines]:
        """The good rows of a block in the schema's types, and the bad lines."""

    @abstractmethod
    def _empty_batch(self) -> pa.RecordBatch:
        """No rows, in the schema's types."""

    @abstractmethod
    def _describe(self, bad: BadLine, decoded: DecodedBlock) -> BadRecordError:
        """What is wrong with a line, in words."""

    def _describe_at(self, decoded: DecodedBlock, at: int) -> tuple[BadRecordError, memoryview | None]:
        line = decoded.bad[at]
        held = line.reason != Reason.OVERSIZED
        return self._describe(line, decoded), decoded.text[line.line_begin : line.line_end] if held else None

    def _check(self, decoded: DecodedBlock, describe_at: Describe) -> None:
        position, bad = decoded.position, decoded.bad
        first = self._header_lines
        mismatched = 0 if position.line == first else self._mismatched
        more = _leading_mismatches(bad, first, mismatched)
        foreign = mismatched < MISMATCHED_LINES <= mismatched + more
        before = bad.numbers[: MISMATCHED_LINES - mismatched - 1] if foreign else bad.numbers
        self._log.check(position.line, before, describe_at)
        if foreign:
            raise _not_of_this_schema(describe_at(len(before))[0])
        self._pending_mismatched = mismatched + more

    def settle(self, decoded: DecodedBlock) -> RowBlock:
        """As :meth:`FileReader.settle`."""
        rows = super().settle(decoded)
        self._mismatched = self._pending_mismatched
        return rows

    _header_lines = 0
    _pending_mismatched = 0


def _leading_mismatches(bad: BadLines, first: int, before: int) -> int:
    """How many of the first `bad` lines carry on a run of lines of another number of columns, `before` long so far.

    first: 0-based first line of rows
    """
    if not len(bad):
        return 0
    candidates = bad[: max(0, MISMATCHED_LINES - before)]
    in_run = candidates.numbers == np.arange(first + before + 1, first + before + 1 + len(candidates))
    in_run &= candidates.reasons == Reason.COLUMN_COUNT
    return len(candidates) if in_run.all() else int(in_run.argmin())


def _not_of_this_schema(record: BadRecordError) -> BadRecordError:
    reason = f"{record.reason}, as in all lines before it: not a file of this schema"
    return BadRecordError(record.file, record.line, record.column, record.offending, reason, record.hint)
