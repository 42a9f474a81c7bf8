"""Parquet and Arrow IPC files of any schema as decoded rows (see `reader.py`)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import fs

from headrace.formats.arrow_batches import ArrowFile, open_arrow_file
from headrace.formats.arrow_columns import ColumnCast, plan_cast
from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_flag, check_type
from headrace.formats.criteo import NUM_DENSE, NUM_SPARSE, other_name
from headrace.formats.errors import ColumnMismatchError, CorruptShardError
from headrace.formats.file_reader import Paths, row_bytes_of
from headrace.formats.manifest import Verify
from headrace.formats.reader import FilePosition
from headrace.formats.record_reader import DecodedRecords, RecordFiles
from headrace.formats.schema import Schema, SchemaError
from headrace.formats.store import Store

DEFAULT_BATCH_ROWS = 1 << 14


@dataclass(frozen=True)
class ArrowBlock:
    """Rows as they are in the file, and how each column becomes one of the schema.

    `looked_at`: positions of the casts whose columns are not sure to stay as they are.
    """

    position: FilePosition
    next_position: FilePosition
    data: pa.RecordBatch
    casts: tuple[ColumnCast, ...]
    looked_at: tuple[int, ...]


class ArrowFiles(RecordFiles[ArrowBlock]):
    """Parquet files, Arrow IPC files and streams (also mixed), whose columns are mapped to a schema by name.

    `columns` gives the name in the files of a schema's column where it is another one. Besides, Criteo columns are
    found under both published names (``I1``, ``C1`` .. or ``int_0``, ``cat_0`` ..). Columns that the schema does not
    name are not read. A missing column, or one whose type cannot become the declared one, is a
    :class:`ColumnMismatchError` with file, column and types, when the file is opened; a value that does not fit is a
    bad record (see `arrow_columns.py` for what fits). Types may differ from file to file.

    Other options are those of :class:`RecordFiles`; ``FilePosition.byte_offset`` counts the bytes of the values
    given out before. Damaged data, a failed page checksum, a file of another kind or of no bytes are
    :class:`CorruptShardError`.
    """

    def __init__(
        self,
        paths: Paths,
        schema: Schema,
        *,
        columns: Mapping[str, str] | None = None,
        bad_records: BadRecords | str = "raise",
        batch_rows: int = DEFAULT_BATCH_ROWS,
        wrap_negative_ids: bool = False,
        verify_page_checksums: bool = True,
        verify_manifest: Verify = "size",
        filesystem: fs.FileSystem | Store | None = None,
    ) -> None:
        if columns is not None:
            check_type("columns", columns, Mapping, 'a mapping from schema to file names, as {"user": "user_id"}')
        self._verify_page_checksums = check_flag("verify_page_checksums", verify_page_checksums)
        super().__init__(
            paths,
            schema,
            bad_records=bad_records,
            batch_rows=batch_rows,
            wrap_negative_ids=check_flag("wrap_negative_ids", wrap_negative_ids),
            verify_manifest=verify_manifest,
            filesystem=filesystem,
        )
        self._names = dict(columns or {})
        if unknown := sorted(set(self._names) - set(schema.column_names)):
            raise SchemaError(f"columns: {unknown[0]!r} is no column of the schema")
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
        return open_arrow_file(
            self.files[file],
            verify_page_checksums=self._verify_page_checksums,
            store=self.store,
            end_required=self._entries[file] is None,
        )

    def _file_blocks(self, start: FilePosition) -> Generator[ArrowBlock, None, None]:
        opened = self._open(start.file)
        try:
            casts = self._casts(self.files[start.file], opened.schema)
            sources = tuple(dict.fromkeys(cast.source for cast in casts))
            kinds = [opened.schema.field(cast.source).type for cast in casts]
            looked_at = tuple(i for i, cast in enumerate(casts) if not cast.keeps(kinds[i]))
            row_bytes = row_bytes_of(
                pa.schema(zip(sources, (opened.schema.field(s).type for s in sources), strict=True))
            )
            at = start
            for batch in opened.batches(sources, start.line, self._batch_rows):
                # To ask Arrow for the bytes of forty columns takes longer than to read a thousand rows of them.
                num_bytes = batch.nbytes if row_bytes is None else batch.num_rows * row_bytes
                after = FilePosition(at.file, at.byte_offset + num_bytes, at.line + batch.num_rows)
                yield ArrowBlock(at, after, batch, casts, looked_at)
                at = after
            self._check_unchanged(start.file, at.line)
            self._check_end(start.file, at.line)
        finally:
            opened.close()

    def _casts(self, path: str, found: pa.Schema) -> tuple[ColumnCast, ...]:
        """The casts of a file, in the order of the schema's columns."""
        casts = []
        for column in self._columns:
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
        hint = ""
        if column in {c.name for c in self.schema.labels}:
            hint = "; a schema without labels reads it (labels=False, --no-labels)"
        if self._is_no_criteo(found):
            hint = "; where no schema is given, Criteo's is taken: give that of these files (schema=, --schema)"
        raise ColumnMismatchError(path, given or column, f"is declared by the schema, the file has {have}{hint}")

    def _is_no_criteo(self, found: pa.Schema) -> bool:
        """Whether the schema has Criteo's columns, and the file none of them, by either name."""
        names = {column.name: other for column in self._columns if (other := other_name(column.name)) is not None}
        return len(names) == NUM_DENSE + NUM_SPARSE and {*names, *names.values()}.isdisjoint(found.names)

    def _decode(self, block: ArrowBlock) -> DecodedRecords:
        data, casts = block.data, block.casts
        changed: dict[int, pa.Array] = {}
        refused = None
        for i in block.looked_at:
            found = data.column(casts[i].source)
            try:
                array, reasons = casts[i].apply(found)
            except pa.ArrowInvalid as error:
                path, reason = self.files[block.position.file], f"column {casts[i].source!r} is damaged ({error})"
                raise CorruptShardError(
                    path, self._listed[block.position.file][path], block.position.line, reason
                ) from error
            except OverflowError as error:
                path, row = self.files[block.position.file], block.position.line
                hint = "give a smaller batch_rows"
                raise OverflowError(f"{path}, row {row}, column {casts[i].source!r}: {error}; {hint}") from error
            if array is not found:
                changed[i] = array
            if reasons is not None and reasons.any():
                refused = np.zeros((len(casts), data.num_rows), np.uint8) if refused is None else refused
                refused[i] = reasons
        if changed or not data.schema.equals(self._arrow_schema):  # to make a batch of columns takes a while
            arrays = [changed[i] if i in changed else data.column(cast.source) for i, cast in enumerate(casts)]
            data = pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)
        return self._decoded(block, data, refused)

    def _value(self, block: ArrowBlock, row: int, column: int) -> object:
        value: object = block.data.column(block.casts[column].source)[row].as_py()
        return value
