"""A part of the rows of some files, such as a split: which blocks hold them, and what of a block."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from headrace.formats.bad_lines import BadLines
from headrace.formats.checks import check_integer
from headrace.formats.reader import DecodedBlock
from headrace.formats.rows import SourceRange

BlockT = TypeVar("BlockT")


class RowSelection:
    """At most one range of rows of each file; ranges of a file that touch are joined, others refused."""

    def __init__(self, ranges: Iterable[SourceRange], *, files: int) -> None:
        self._by_file: dict[int, SourceRange] = {}
        for r in sorted(ranges, key=lambda r: (r.file, r.first_row)):
            if check_integer("file of a range of rows", r.file, 0, 2**62) >= files:
                raise ValueError(
                    f"a range of rows is of file number {r.file}, counted from 0 in the order given, but there "
                    f"{'is one file' if files == 1 else f'are {files} files'}"
                )
            check_integer("first row of a range", r.first_row, 0, 2**62)
            check_integer("rows of a range", r.rows, 0, 2**62)
            before = self._by_file.get(r.file)
            if before is not None and before.first_row + before.rows != r.first_row:
                raise ValueError(f"the rows selected of a file are one range, got {before} and {r}")
            if r.rows:
                begin = r.first_row if before is None else before.first_row
                self._by_file[r.file] = SourceRange(r.file, begin, r.first_row + r.rows - begin)

    @property
    def num_rows(self) -> int:
        return sum(r.rows for r in self._by_file.values())

    def has(self, file: int) -> bool:
        return file in self._by_file

    def digest(self, files: str) -> str:
        """Hex digest of these rows of the files with the digest `files`."""
        rows = [(r.file, r.first_row, r.rows) for r in self._by_file.values()]
        return hashlib.blake2b(repr((files, rows)).encode(), digest_size=16).hexdigest()

    def blocks(
        self,
        path: str,
        file: int,
        start: int,
        blocks: Generator[BlockT, None, None],
        rows_of: Callable[[BlockT], tuple[int, int]],
    ) -> Generator[BlockT, None, None]:
        """Those of a file's blocks, from row `start` on, that hold selected rows; ends behind the last one.

        ValueError when the file ends first.
        """
        first, last = self._span(file)
        end = start
        try:
            for block in blocks:
                begin, end = rows_of(block)
                if begin >= last:  # resumed there
                    return
                if end > first:
                    yield block
                if end > last:
                    return  # at `last` just one more step tells whether the file ends there, as its manifest says
                if end == last and next(blocks, None) is not None:
                    return
        finally:
            blocks.close()
        if end < last:
            raise ValueError(f"{path}: ends after {end} rows, but rows up to {last} are selected: another file?")

    def trim(self, decoded: DecodedBlock) -> DecodedBlock:
        """The selected rows of a block, and the bad ones among them; its `position` is at the first of them."""
        block_first, block_last = decoded.position.line, decoded.position.line + decoded.lines
        first, last = self._span(decoded.position.file)
        first, last = max(first, block_first), max(first, min(last, block_last))
        if (first, last) == (block_first, block_last):
            return decoded
        bad = decoded.bad.numbers - 1
        before, inside = (int(np.searchsorted(bad, row)) for row in (first, last))
        good_before = first - block_first - before
        return replace(
            decoded,
            rows=decoded.rows.slice(good_before, last - first - (inside - before)),
            position=replace(decoded.position, line=first),
            lines=last - first,
            bad=BadLines(decoded.bad.table[before:inside]),
        )

    def _span(self, file: int) -> tuple[int, int]:
        r = self._by_file[file]
        return r.first_row, r.first_row + r.rows
