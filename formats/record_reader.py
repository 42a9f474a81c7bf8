"""Files of records that are no lines (Parquet, arrays): what the readers of all such formats share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import fs

from headrace.formats.arrow_columns import column_kind
from headrace.formats.bad_lines import NO_BAD_LINES, BadLines
from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_integer
from headrace.formats.criteo_lines import Reason, field_reason
from headrace.formats.errors import BadRecordError, CorruptShardError
from headrace.formats.file_reader import FileReader, Paths, good_ranges
from headrace.formats.files import digest
from headrace.formats.manifest import Verify
from headrace.formats.reader import DecodedBlock, FilePosition
from headrace.formats.rows import RowBlock, Source
from headrace.formats.schema import Dense, Label, Schema, Sparse
from headrace.formats.store import Store
from headrace.formats.text_values import U8


class RecordBlock(Protocol):
    """Rows as they are in a file."""

    @property
    def position(self) -> FilePosition: ...

    @property
    def next_position(self) -> FilePosition: ...


RecordBlockT = TypeVar("RecordBlockT", bound=RecordBlock)


@dataclass(frozen=True)
class DecodedRecords(DecodedBlock):
    """A decoded block; `block` is what it was made from where there are bad rows, to name the offending values."""

    block: Any = None


class RecordFiles(FileReader[RecordBlockT]):
    """Blocks of at most `batch_rows` rows, whose columns are cast to the schema's types; see :class:`FileReader`.

    `wrap_negative_ids`: signed ids of the declared width stand for the unsigned ones with the same bits, as in files
    that were written through int32 (ids over 2^31 are negative there). Off, a negative id is a bad record.

    Row numbers, and lines in errors, count the records of a file (line 1 is the first). ``FilePosition.line`` alone
    says where to resume.
    """

    def __init__(
        self,
        paths: Paths,
        schema: Schema,
        *,
        bad_records: BadRecords | str,
        batch_rows: int,
        wrap_negative_ids: bool,
        verify_manifest: Verify,
        filesystem: fs.FileSystem | Store | None,
    ) -> None:
        self._batch_rows = check_integer("batch_rows", batch_rows, 1, 2**31 - 1)
        super().__init__(paths, schema, bad_records=bad_records, verify_manifest=verify_manifest, filesystem=filesystem)
        self._wrap_negative_ids = wrap_negative_ids
        self._columns: tuple[Label | Dense | Sparse, ...] = (*schema.labels, *schema.dense, *schema.stored_sparse)
        self._arrow_schema = schema.arrow_schema(labels=bool(schema.labels))
        self._listed = [self._sizes_of(file) for file in range(len(self.files))]
        if self._growing is None:
            names, sizes = zip(*(item for sizes_of in self._listed for item in sizes_of.items()), strict=True)
            self.digest = self._files_digest = digest(names, sizes)

    def _sizes_of(self, file: int) -> dict[str, int]:
        names = self.files_of(file)
        return dict(zip(names, self.store.sizes(names), strict=True))

    def _add(self, files: tuple[str, ...]) -> None:
        super()._add(files)
        self._listed = [*self._listed, *(dict([item]) for item in zip(files, self.store.sizes(files), strict=True))]

    _listed: list[dict[str, int]] = []  # noqa: RUF012 (replaced, never changed)

    def _check_unchanged(self, file: int, row: int) -> None:
        """CorruptShardError when a file that rows of number `file` come from has another size than at construction."""
        for path, listed in self._listed[file].items():
            if (size := self.store.size(path)) != listed:
                reason = f"changed since it was listed ({listed} bytes then, {size} now)"
                raise CorruptShardError(path, min(size, listed), row, reason)

    def _rows_of_block(self, block: RecordBlockT) -> tuple[int, int]:
        return block.position.line, block.next_position.line

    def _decoded(self, block: RecordBlockT, data: pa.RecordBatch, refused: U8 | None) -> DecodedRecords:
        """The decoded block of these rows without its bad ones.

        data: all rows, in the schema's columns
        refused: uint8 [columns, rows], the reason why a value makes its row a bad one, or 0; None where none does
        """
        file, first = block.position.file, block.position.line
        rows = block.next_position.line - first
        bad_rows = np.zeros(0, np.int64) if refused is None else np.flatnonzero(refused.any(axis=0))
        if len(bad_rows):
            data = data.take(pa.array(np.delete(np.arange(rows), bad_rows)))
        return DecodedRecords(
            rows=RowBlock(data, Source(self.files, good_ranges(file, first, rows, bad_rows + first)), self._row_bytes),
            position=block.position,
            next_position=block.next_position,
            lines=rows,
            bad=NO_BAD_LINES if refused is None else BadLines.of_rows(bad_rows, first, refused),
            text=memoryview(b""),
            text_offset=0,
            block=block if len(bad_rows) else None,
        )

    def _describe_at(self, decoded: DecodedBlock, at: int) -> tuple[BadRecordError, None]:
        assert isinstance(decoded, DecodedRecords)
        bad, column = decoded.bad[at], self._columns[decoded.bad[at].column]
        value = self._value(decoded.block, bad.line - 1 - decoded.block.position.line, bad.column)
        offending = value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
        reason = field_reason(Reason(bad.reason), column_kind(column), holds_numbers=True)
        return BadRecordError(self.files[decoded.position.file], bad.line, column.name, offending, reason), None

    @abstractmethod
    def _value(self, block: RecordBlockT, row: int, column: int) -> object:
        """The value of a block's row in the schema's column, as it is in the file."""
