"""Lines that were refused, as a table of integers: a file of nothing but bad lines stays cheap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


class BadLine(NamedTuple):
    """A row that was refused: its 1-based physical line; the column's ordinal, or -1 for the whole line; a reason code.

    [begin, end): the offending bytes, [line_begin, line_end): the line without its line feed, both in
    ``DecodedBlock.text``; `found`: its number of columns, where known.
    """

    line: int
    column: int
    reason: int
    begin: int
    end: int
    line_begin: int
    line_end: int
    found: int


class BadLines(Sequence[BadLine]):
    """The refused lines of a block in order, 64 bytes each; a :class:`BadLine` is made when it is asked for.

    `table` is int64 [n, 8]: the fields of :class:`BadLine`.
    """

    def __init__(self, table: I64) -> None:
        self.table = table

    @classmethod
    def of(cls, lines: Sequence[BadLine]) -> BadLines:
        return cls(np.array(lines, np.int64).reshape(-1, len(BadLine._fields)))

    @classmethod
    def of_rows(cls, rows: I64, first: int, refused: npt.NDArray[np.uint8]) -> BadLines:
        """Bad rows of a format without lines: `rows` of the block that begins with row `first` of the file.

        refused: uint8 [columns, rows of the block], a reason or 0; of several columns of a row, the first is named
        """
        reasons = refused[:, rows]
        columns = (reasons != 0).argmax(axis=0) if len(rows) else np.zeros(0, np.int64)
        table = np.zeros((len(rows), len(BadLine._fields)), np.int64)
        table[:, 0] = rows + first + 1
        table[:, 1] = columns
        table[:, 2] = reasons[columns, np.arange(len(rows))]
        return cls(table)

    @property
    def numbers(self) -> I64:
        """int64 [n], 1-based physical lines, ascending."""
        return self.table[:, 0]

    @property
    def reasons(self) -> I64:
        """int64 [n]."""
        return self.table[:, 2]

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> BadLine: ...
    @overload
    def __getitem__(self, index: slice) -> BadLines: ...
    def __getitem__(self, index: int | slice) -> BadLine | BadLines:
        if isinstance(index, slice):
            return BadLines(self.table[index])
        return BadLine(*self.table[index].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BadLines) and np.array_equal(self.table, other.table)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BadLines({len(self)})"


NO_BAD_LINES = BadLines.of(())
