"""What readers share that join rows with other tables as they decode: no row is left out, and misses are counted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from headrace.formats.file_reader import BlockT, FileReader
from headrace.formats.files import digest, file_sizes
from headrace.formats.reader import DecodedBlock
from headrace.formats.rows import RowBlock


@dataclass(frozen=True)
class JoinedBlock(DecodedBlock):
    """A decoded block; `unmatched` counts, for each join, the rows that found nothing."""

    unmatched: Mapping[str, int] = field(default_factory=dict)


class JoiningReader(FileReader[BlockT]):
    """Stands before another reader in the bases of a class, and joins its rows.

    `rows_unmatched` counts, for each join, the rows that found nothing, over the blocks of this pass settled so far.
    `side_rows_skipped` has the bad rows that were left out of each side table when it was read. `digest` and `files_of`
    cover the `_side_files`, too.
    """

    rows_unmatched: dict[str, int]
    side_rows_skipped: dict[str, int]
    _join_names: tuple[str, ...] = ()
    _side_files: tuple[str, ...] = ()

    def _joins_are(self, names: tuple[str, ...], side_files: tuple[str, ...], skipped: Mapping[str, int]) -> None:
        """To be called once the reader is made."""
        self._join_names, self._side_files = names, tuple(dict.fromkeys(side_files))
        self.side_rows_skipped = dict(skipped)
        every = (*self.files, *self._side_files)
        self.digest = self._files_digest = digest(every, file_sizes(every))
        self.rows_unmatched = dict.fromkeys(names, 0)

    def files_of(self, file: int) -> tuple[str, ...]:
        return (*super().files_of(file), *self._side_files)

    def begin(self, *, rows_in: int = 0, rows_skipped: int = 0) -> None:
        super().begin(rows_in=rows_in, rows_skipped=rows_skipped)
        self.rows_unmatched = dict.fromkeys(self._join_names, 0)

    def decode(self, block: BlockT) -> JoinedBlock:
        decoded = super().decode(block)
        data, unmatched = self._joined(decoded.rows.data)
        known: dict[str, Any] = {f.name: getattr(decoded, f.name) for f in fields(DecodedBlock)}
        return JoinedBlock(**{**known, "rows": RowBlock(data, decoded.rows.source)}, unmatched=unmatched)

    def settle(self, decoded: DecodedBlock) -> RowBlock:
        rows = super().settle(decoded)
        if isinstance(decoded, JoinedBlock):
            for name, count in decoded.unmatched.items():
                self.rows_unmatched[name] += count
        return rows

    @abstractmethod
    def _joined(self, data: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """The rows with what is joined, and for each join how many found nothing; called by several threads."""
