"""Rows on their way through the loader, and where each of them came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.formats.checks import check_type

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SourceRange:
    """`rows` consecutive rows of file number `file` (position in ``Source.files``).

    A row number is the 0-based physical line (text) or record (other formats), bad and blank ones counted, so that
    row r is line r + 1 in an editor.
    """

    file: int
    first_row: int
    rows: int


@dataclass(frozen=True)
class Source:
    """Origin of the rows of a block, in order: as ranges, or, once shuffled, as file int32 [B] and row int64 [B]."""

    files: tuple[str, ...]
    ranges: tuple[SourceRange, ...] | None
    file: I32 | None = None
    row: I64 | None = None

    @property
    def num_rows(self) -> int:
        if self.ranges is not None:
            return sum(r.rows for r in self.ranges)
        assert self.row is not None
        return len(self.row)

    def arrays(self) -> tuple[I32, I64]:
        """(file int32 [B], row int64 [B])."""
        if self.ranges is None:
            assert self.file is not None
            assert self.row is not None
            return self.file, self.row
        if not self.ranges:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        file = np.repeat(
            np.array([r.file for r in self.ranges], np.int32),
            np.array([r.rows for r in self.ranges], np.int64),
        )
        row = np.concatenate([np.arange(r.first_row, r.first_row + r.rows, dtype=np.int64) for r in self.ranges])
        return file, row

    def locate(self, position: int) -> tuple[str, int]:
        """(file name, 0-based row in it) of the row at `position`."""
        file, row = self.arrays()
        return self.files[int(file[position])], int(row[position])

    def slice(self, offset: int, rows: int) -> Source:
        if self.ranges is None:
            file, row = self.arrays()
            return Source(self.files, None, file[offset : offset + rows], row[offset : offset + rows])
        kept = []
        for r in self.ranges:
            skip = min(offset, r.rows)
            take = min(rows, r.rows - skip)
            if take > 0:
                kept.append(SourceRange(r.file, r.first_row + skip, take))
            offset -= skip
            rows -= max(take, 0)
        return Source(self.files, tuple(kept))

    def take(self, indices: I64) -> Source:
        file, row = self.arrays()
        return Source(self.files, None, file[indices], row[indices])

    @staticmethod
    def concat(parts: Sequence[Source]) -> Source:
        """Sources one after the other; neighbouring ranges are joined.

        The file lists are equal, or beginnings of the longest one, as those of one reader are; others are merged into
        one list, by name.
        """
        parts = _of_one_list(parts)
        files = max((p.files for p in parts), key=len, default=())
        if any(p.ranges is None for p in parts):
            arrays = [p.arrays() for p in parts]
            return Source(files, None, np.concatenate([a[0] for a in arrays]), np.concatenate([a[1] for a in arrays]))
        joined: list[SourceRange] = []
        for part in parts:
            for r in part.ranges or ():
                last = joined[-1] if joined else None
                if last and last.file == r.file and last.first_row + last.rows == r.first_row:
                    joined[-1] = SourceRange(last.file, last.first_row, last.rows + r.rows)
                else:
                    joined.append(r)
        return Source(files, tuple(joined))


def _of_one_list(parts: Sequence[Source]) -> Sequence[Source]:
    """The same sources with equal file lists; as they are where one list begins with all the others."""
    files = max((p.files for p in parts), key=len, default=())
    if all(p.files is files or p.files == files[: len(p.files)] for p in parts):
        return parts
    merged = list(files)
    position = {name: number for number, name in reversed(list(enumerate(files)))}
    for part in parts:
        for name in part.files:
            if name not in position:
                position[name] = len(merged)
                merged.append(name)
    return [_renumbered(part, files, tuple(merged), position) for part in parts]


def _renumbered(part: Source, kept: tuple[str, ...], merged: tuple[str, ...], position: dict[str, int]) -> Source:
    """`part` over the list `merged`, which begins with `kept`; a number stays where it means the same file."""
    if part.files == kept[: len(part.files)]:
        return replace(part, files=merged)
    number = np.array([position[name] for name in part.files], np.int32)
    if part.ranges is None:
        assert part.file is not None
        return replace(part, files=merged, file=number[part.file])
    return replace(part, files=merged, ranges=tuple(replace(r, file=int(number[r.file])) for r in part.ranges))


@dataclass(frozen=True)
class RowBlock:
    """Decoded rows (an Arrow record batch of the dataset's schema) and their source.

    `row_bytes`: bytes of the values of a row, where a reader knows; to ask Arrow takes longer than to decode a few
    hundred rows.
    """

    data: pa.RecordBatch
    source: Source
    row_bytes: int | None = None

    def __post_init__(self) -> None:
        for part in self.parts:  # not `data`: that would join them
            check_type("data", part, pa.RecordBatch, "a pyarrow.RecordBatch, as one of table.to_batches()")
        check_type("source", self.source, Source, "a headrace.Source, which tells file and row of each of them")
        if self.source.num_rows != self.num_rows:
            raise ValueError(f"{self.num_rows} rows with the source of {self.source.num_rows}")

    @property
    def num_rows(self) -> int:
        return int(self.data.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the values (and of what else there is, where `row_bytes` is not known)."""
        if self.row_bytes is None:
            return sum(int(part.nbytes) for part in self.parts)
        return self.num_rows * self.row_bytes

    @property
    def parts(self) -> tuple[pa.RecordBatch, ...]:
        """The rows as they lie in memory: record batches that follow each other."""
        return (self.data,)

    def slice(self, offset: int, rows: int) -> RowBlock:
        """A view of rows [offset, offset + rows); no copy."""
        return RowBlock(self.data.slice(offset, rows), self.source.slice(offset, rows), self.row_bytes)

    def take(self, indices: I64) -> RowBlock:
        """Rows in the order of `indices` (a copy)."""
        indices = np.asarray(indices, np.int64)
        return RowBlock(self.data.take(pa.array(indices)), self.source.take(indices), self.row_bytes)

    @staticmethod
    def concat(blocks: Sequence[RowBlock]) -> RowBlock:
        """Blocks one after the other, their data joined when it is asked for; a single block is returned as it is."""
        if len(blocks) == 1:
            return blocks[0]
        parts = tuple(part for b in blocks for part in b.parts)
        known = {b.row_bytes for b in blocks}
        row_bytes = known.pop() if len(known) == 1 else None
        return _JoinedRows(None, Source.concat([b.source for b in blocks]), row_bytes, parts=parts)


class _JoinedRows(RowBlock):
    """Rows of several record batches: who takes them by their parts saves joining them."""

    _parts: tuple[pa.RecordBatch, ...]

    def __init__(
        self,
        data: pa.RecordBatch | None,
        source: Source,
        row_bytes: int | None = None,
        *,
        parts: tuple[pa.RecordBatch, ...] = (),
    ) -> None:
        for name, value in (("_parts", parts or (data,)), ("source", source), ("row_bytes", row_bytes)):
            object.__setattr__(self, name, value)
        self.__post_init__()

    @property
    def data(self) -> pa.RecordBatch:  # type: ignore[override]
        if len(self._parts) > 1:
            object.__setattr__(self, "_parts", (pa.concat_batches(self._parts),))
        return self._parts[0]

    @property
    def parts(self) -> tuple[pa.RecordBatch, ...]:
        return self._parts

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self._parts)
