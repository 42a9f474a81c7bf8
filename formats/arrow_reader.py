"""Parquet and Arrow IPC files of any schema as decoded rows (see `reader.py`)."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.formats.arrow_batches import ArrowFile, open_arrow_file
from headrace.formats.arrow_columns import ColumnCast, plan_cast
from headrace.formats.bad_lines import BadLines
from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_integer
from headrace.formats.criteo import other_name
from headrace.formats.criteo_lines import Reason, field_reason
from headrace.formats.errors import BadRecordError, ColumnMismatchError, CorruptShardError
from headrace.formats.file_reader import FileReader, good_ranges
from headrace.formats.files import PathLike
from headrace.formats.manifest import Verify
from headrace.formats.reader import DecodedBlock, FilePosition
from headrace.formats.rows import RowBlock, Source
from headrace.formats.schema import Dense, Label, Schema, SchemaError, Sparse

DEFAULT_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class ArrowBlock:
    """Rows as they are in the file, and how each column becomes one of the schema."""

    position: FilePosition
    next_position: FilePosition
    data: pa.RecordBatch
    casts: tuple[ColumnCast, ...]


@dataclass(frozen=True)
class DecodedArrow(DecodedBlock):
    """A decoded block; `block` is what it was made from where there are bad rows, to name the offending values."""

    block: ArrowBlock | None = None


class ArrowFiles(FileReader[ArrowBlock]):
    """Parquet files, Arrow IPC files and streams (also mixed), whose columns are mapped to a schema by name.

    `columns` gives the name in the files of a schema's column where it is another one. Besides, Criteo columns are
    found under both published names (``I1``, ``C1`` .. or ``int_0``, ``cat_0`` ..). Columns that the schema does not
    name are not read. A missing column, or one whose type cannot become the declared one, is a
    :class:`ColumnMismatchError` with file, column and types, when the file is opened; a value that does not fit is a
    bad record (see `arrow_columns.py` for what fits). Types may differ from file to file.

    `wrap_negative_ids`: signed ids of the declared width stand for the unsigned ones with the same bits, as in files
    that were written through int32 (ids over 2^31 are negative there). Off, a negative id is a bad record.

    Row numbers and lines in errors count the records of a file (line 1 is the first). ``FilePosition.line`` alone says
    where to resume; `byte_offset` counts the Arrow bytes given out before. Damaged data, a failed page checksum, a file
    of another kind or of no bytes are :class:`CorruptShardError`. At most `batch_rows` rows are decoded at a time.
    """

    def __init__(
        self,
        paths: PathLike | Iterable[PathLike],
        schema: Schema,
        *,
        columns: Mapping[str, str] | None = None,
        bad_records: BadRecords | str = "raise",
        batch_rows: int = DEFAULT_BATCH_ROWS,
        wrap_negative_ids: bool = False,
        verify_page_checksums: bool = True,
        verify_manifest: Verify = "size",
    ) -> None:
        self._batch_rows = check_integer("batch_rows", batch_rows, 1, 2**31 - 1)
        super().__init__(paths, schema, bad_records=bad_records, verify_manifest=verify_manifest)
        self._names = dict(columns or {})
        if unknown := sorted(set(self._names) - set(schema.column_names)):
            raise SchemaError(f"columns: {unknown[0]!r} is no column of the schema")
        self._wrap_negative_ids = wrap_negative_ids
        self._verify_page_checksums = verify_page_checksums
        self._arrow_schema = schema.arrow_schema(labels=bool(schema.labels))
        self._file_rows: dict[int, int | None] = {}

    def _rows_of(self, file: int) -> int | None:
        """By its manifest or its footer; None for a stream or an IPC file without a manifest."""
        if file not in self._file_rows:
            rows = super()._rows_of(file)
            if rows is None:
                opened = self._open(file)
                rows = opened.num_rows
                opened.close()
            self._file_rows[file] = rows
        return self._file_rows[file]

    def _open(self, file: int) -> ArrowFile:
        self._check_unchanged(file, 0)
        return open_arrow_file(self.files[file], verify_page_checksums=self._verify_page_checksums)

    def _check_unchanged(self, file: int, row: int) -> None:
        path, listed, size = self.files[file], self._sizes[file], os.path.getsize(self.files[file])
        if size != listed:
            reason = f"changed since it was listed ({listed} bytes then, {size} now)"
            raise CorruptShardError(path, min(size, listed), row, reason)

    def _file_blocks(self, start: FilePosition) -> Generator[ArrowBlock, None, None]:
        opened = self._open(start.file)
        try:
            casts = self._casts(self.files[start.file], opened.schema)
            sources = tuple(dict.fromkeys(cast.source for cast in casts))
            at = start
            for batch in opened.batches(sources, start.line, self._batch_rows):
                after = FilePosition(at.file, at.byte_offset + batch.nbytes, at.line + batch.num_rows)
                yield ArrowBlock(at, after, batch, casts)
                at = after
            self._check_unchanged(start.file, at.line)
            self._check_end(start.file, at.line)
        finally:
            opened.close()

    def _casts(self, path: str, found: pa.Schema) -> tuple[ColumnCast, ...]:
        """The casts of a file, in the order of the schema's columns."""
        columns: list[Label | Dense | Sparse] = [*self.schema.labels, *self.schema.dense, *self.schema.sparse]
        casts = []
        for column in columns:
            name = self._name_in(path, column.name, found)
            kind = found.field(name).type
            casts.append(plan_cast(path, column, name, kind, wrap_negative=self._wrap_negative_ids))
        return tuple(casts)

    def _name_in(self, path: str, column: str, found: pa.Schema) -> str:
        given = self._names.get(column)
        names = [given] if given is not None else [column, other_name(column)]
        for name in names:
            if name is not None and (count := len(found.get_all_field_indices(name))):
                if count > 1:
                    raise ColumnMismatchError(path, name, f"is there {count} times")
                return name
        have = ", ".join(found.names[:50])
        hint = "; a schema without labels reads it" if column in {c.name for c in self.schema.labels} else ""
        raise ColumnMismatchError(path, given or column, f"is declared by the schema, the file has {have}{hint}")

    def _rows_of_block(self, block: ArrowBlock) -> tuple[int, int]:
        return block.position.line, block.next_position.line

    def _decode(self, block: ArrowBlock) -> DecodedArrow:
        file, first, rows = block.position.file, block.position.line, block.data.num_rows
        arrays, refused = [], np.zeros((len(block.casts), rows), np.uint8)
        for i, cast in enumerate(block.casts):
            try:
                array, refused[i] = cast.apply(block.data.column(cast.source))
            except pa.ArrowInvalid as error:
                reason = f"column {cast.source!r} is damaged ({error})"
                raise CorruptShardError(self.files[file], self._sizes[file], first, reason) from error
            arrays.append(array)
        bad_rows = np.flatnonzero(refused.any(axis=0))
        data = pa.RecordBatch.from_arrays(arrays, schema=_nullable(self._arrow_schema))
        if len(bad_rows):
            kept = np.delete(np.arange(rows), bad_rows)
            data = data.take(pa.array(kept))
        data = pa.RecordBatch.from_arrays(data.columns, schema=self._arrow_schema)
        ranges = good_ranges(file, first, rows, bad_rows + first)
        return DecodedArrow(
            rows=RowBlock(data, Source(self.files, ranges)),
            position=block.position,
            next_position=block.next_position,
            lines=rows,
            bad=BadLines.of_rows(bad_rows, first, refused),
            text=memoryview(b""),
            text_offset=0,
            block=block if len(bad_rows) else None,
        )

    def _describe_at(self, decoded: DecodedBlock, at: int) -> tuple[BadRecordError, None]:
        bad = decoded.bad[at]
        assert isinstance(decoded, DecodedArrow)
        block = decoded.block
        assert block is not None
        cast = block.casts[bad.column]
        value = block.data.column(cast.source)[bad.line - 1 - block.position.line].as_py()
        offending = value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
        reason = field_reason(Reason(bad.reason), cast.kind)
        return BadRecordError(self.files[decoded.position.file], bad.line, cast.name, offending, reason), None


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Before bad rows are taken out, a label may be null."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])
