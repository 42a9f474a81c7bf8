"""A reader of lines in memory: the reader's contract at its smallest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from headrace.formats.reader import FilePosition
from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Dense, Schema


@dataclass(frozen=True)
class MemoryRaw:
    """Lines of one file, undecoded."""

    position: FilePosition
    next_position: FilePosition
    lines: tuple[str, ...]


@dataclass(frozen=True)
class MemoryDecoded:
    """The integers among the lines, and the lines that are none: (0-based line, text)."""

    rows: RowBlock
    position: FilePosition
    next_position: FilePosition
    lines: int
    bad: tuple[tuple[int, str], ...]


class MemoryReader:
    """Files given as {name: lines}; a line is a decimal integer (the column `x`) or a bad record.

    Blocks have at most `block_lines` lines and never span files. With `odd_first_block` the first block after a start
    has one line, so that a resume cuts other blocks.
    """

    schema = Schema(dense=(Dense(name="x"),))

    def __init__(
        self,
        files: Mapping[str, Sequence[str]],
        *,
        block_lines: int = 4,
        on_bad_record: Literal["raise", "skip"] = "raise",
        odd_first_block: bool = False,
    ) -> None:
        self.files = tuple(files)
        self.block_lines = block_lines
        self.on_bad_record = on_bad_record
        self.odd_first_block = odd_first_block
        self.num_rows: int | None = None
        self.rows_in = self.rows_skipped = self.bytes_in = 0
        self._lines = [tuple(lines) for lines in files.values()]
        self.digest = hashlib.blake2b(repr(self.files).encode(), digest_size=8).hexdigest()

    @property
    def may_skip(self) -> bool:
        return self.on_bad_record != "raise"

    def begin(self, *, rows_in: int = 0, rows_skipped: int = 0) -> None:
        """A pass begins, resumed behind so many rows."""
        self.rows_in, self.rows_skipped, self.bytes_in = rows_in, rows_skipped, 0

    def raw_blocks(self, start: FilePosition | None) -> Iterator[MemoryRaw]:
        first_file, line = (0, 0) if start is None else (start.file, start.line)
        size = 1 if self.odd_first_block else self.block_lines
        for file in range(first_file, len(self.files)):
            lines = self._lines[file]
            while line < len(lines):
                end = min(line + size, len(lines))
                yield MemoryRaw(self._at(file, line), self._at(file, end), lines[line:end])
                line, size = end, self.block_lines
            line = 0

    def decode(self, block: MemoryRaw) -> MemoryDecoded:
        values, ranges, bad = [], [], []
        for line, text in enumerate(block.lines, start=block.position.line):
            if text.isascii() and text.isdigit():
                values.append(int(text))
                ranges.append(Source(self.files, (SourceRange(block.position.file, line, 1),)))
            else:
                bad.append((line, text))
        source = Source.concat(ranges) if ranges else Source(self.files, ())
        data = pa.record_batch([pa.array(values, pa.int64())], schema=self.schema.arrow_schema())
        rows = RowBlock(data, source)
        return MemoryDecoded(rows, block.position, block.next_position, len(block.lines), tuple(bad))

    def settle(self, decoded: MemoryDecoded) -> RowBlock:
        if decoded.bad and self.on_bad_record == "raise":
            line, text = decoded.bad[0]
            raise ValueError(f"{self.files[decoded.position.file]}, line {line + 1}: not an integer: {text!r}")
        self.rows_in += decoded.lines
        self.rows_skipped += len(decoded.bad)
        self.bytes_in += decoded.next_position.byte_offset - decoded.position.byte_offset
        return decoded.rows

    def _at(self, file: int, line: int) -> FilePosition:
        return FilePosition(file, sum(len(text) + 1 for text in self._lines[file][:line]), line)
