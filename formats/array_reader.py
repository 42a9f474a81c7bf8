"""Criteo data in binary forms as decoded rows (see `criteo_arrays.py` and `reader.py`)."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from headrace.formats.arrow_arrays import to_arrow
from headrace.formats.arrow_columns import column_kind, fit
from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_integer, check_type
from headrace.formats.criteo import NUM_DENSE, NUM_SPARSE
from headrace.formats.criteo_arrays import ArrayForm, ShardRows
from headrace.formats.file_reader import Paths
from headrace.formats.files import PathLike
from headrace.formats.growing import GrowingFolder
from headrace.formats.manifest import Verify
from headrace.formats.multi_hot import MultiHotTables
from headrace.formats.reader import FilePosition
from headrace.formats.record_reader import DecodedRecords, RecordFiles
from headrace.formats.schema import Schema, SchemaError, check_schema
from headrace.formats.store import Store
from headrace.formats.text_values import U8

DEFAULT_BATCH_ROWS = 1 << 14


@dataclass(frozen=True)
class ArrayBlock:
    """Rows as they are in the files."""

    position: FilePosition
    next_position: FilePosition
    data: ShardRows


class ArrayFiles(RecordFiles[ArrayBlock]):
    """Shards of one :class:`ArrayForm`; columns are taken by position: a label, 13 dense, 26 ids.

    `files` are those that stand for a shard (``day_0_sparse.npy``), whose siblings must lie beside them; `digest`
    covers all of them. A schema without labels leaves the labels out. A feature of several ids a row needs a
    ``multi_hot`` column; `multi_hot` makes such ids of one-hot ones.

    `modulo` takes ids modulo one number, or one for each feature, as DLRM's ``--max-ind-range`` does when it loads.
    Other options are those of :class:`RecordFiles`. A missing value was written as 0 and cannot be told from id 0.
    """

    _a_folder_is_its_manifest = False

    def __init__(
        self,
        paths: Paths,
        schema: Schema,
        form: ArrayForm,
        *,
        multi_hot: MultiHotTables | None = None,
        modulo: int | Sequence[int] | None = None,
        wrap_negative_ids: bool = False,
        bad_records: BadRecords | str = "raise",
        batch_rows: int = DEFAULT_BATCH_ROWS,
        verify_manifest: Verify = "size",
        filesystem: fs.FileSystem | Store | None = None,
    ) -> None:
        check_type("form", form, ArrayForm, "one of headrace.formats.criteo_arrays, as DLRM_BIN; see open_dataset")
        check_schema(schema)
        self.form = form
        _check_schema(schema)
        if isinstance(paths, GrowingFolder):
            raise ValueError(
                "a growing folder of arrays cannot be read: the files of a shard do not appear in one step"
            )
        super().__init__(
            paths,
            schema,
            bad_records=bad_records,
            batch_rows=batch_rows,
            wrap_negative_ids=wrap_negative_ids,
            verify_manifest=verify_manifest,
            filesystem=filesystem,
        )
        self._multi_hot = multi_hot
        self._modulo = _moduli(modulo)
        self._file_rows: dict[int, int] = {}

    def files_of(self, file: int) -> tuple[str, ...]:
        return self.form.files(self.files[file])

    def _list(self, paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
        given = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else list(paths)
        parts = [self.store.find(path) for path in given]
        found = tuple(path for part in parts for path in part) or self.store.find(given)
        shards = tuple(path for path in found if path.endswith(self.form.suffix))
        if not shards:
            raise FileNotFoundError(f"no file of {self.form.name} (*{self.form.suffix}) among {found[0]} and others")
        for path, part in zip(given, parts, strict=True):
            self._check_kind(path, part)
        for path in found:
            if (shard := self.form.shard_of(path)) is not None and shard not in shards:
                raise FileNotFoundError(
                    f"{shard}: is not among the files, but {path} is, which has the other columns of its rows: "
                    f"{self.form.parts()}; bring it, or name the files to read"
                )
        return shards

    def _check_kind(self, path: PathLike, found: tuple[str, ...]) -> None:
        """ValueError where `path` itself is a file of another kind; folders and patterns may hold such files, too."""
        is_itself = len(found) == 1 and os.path.basename(found[0]) == os.path.basename(os.fspath(path))
        if is_itself and not found[0].endswith((self.form.suffix, *self.form.siblings)):
            raise ValueError(f"{found[0]}: no file of {self.form.name}: {self.form.parts()}")

    def _sizes_of(self, file: int) -> dict[str, int]:
        sizes = {}
        for name in self.files_of(file):
            try:
                (sizes[name],) = self.store.sizes((name,))
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{name}: is missing beside {self.files[file]}: {self.form.parts()}") from error
        return sizes

    def _rows_of(self, file: int) -> int:
        if file not in self._file_rows:
            shard = self.form.open(self.files[file], self.store)
            shard.close()
            self._file_rows[file] = shard.rows
        return self._file_rows[file]

    def _file_blocks(self, start: FilePosition) -> Generator[ArrayBlock, None, None]:
        self._check_unchanged(start.file, 0)
        shard = self.form.open(self.files[start.file], self.store)
        try:
            for first in range(start.line, shard.rows, self._batch_rows):
                rows = min(self._batch_rows, shard.rows - first)
                at, after = (FilePosition(start.file, n * shard.row_bytes, n) for n in (first, first + rows))
                yield ArrayBlock(at, after, shard.read(first, rows))
            self._check_unchanged(start.file, shard.rows)
            self._check_end(start.file, shard.rows)
        finally:
            shard.close()

    def _decode(self, block: ArrayBlock) -> DecodedRecords:
        schema, data = self.schema, block.data
        arrays: list[pa.Array] = []
        refused = np.zeros((len(self._columns), len(data.labels)), np.uint8)
        plain = [(c, data.labels) for c in schema.labels]
        plain += [(c, data.dense[:, i]) for i, c in enumerate(schema.dense)]  # type: ignore[misc]
        for column, (declared, values) in enumerate(plain):
            fitted, refused[column] = fit(values, column_kind(declared))
            arrays.append(to_arrow(fitted, None, self._arrow_schema.field(column).type))
        for feature in range(NUM_SPARSE):
            column = len(plain) + feature
            kind = self._arrow_schema.field(column).type
            ids, refused[column] = self._ids(feature, data.sparse[feature], self.files[block.position.file])
            arrays.append(
                _lists(ids, kind) if schema.stored_sparse[feature].multi_hot else to_arrow(ids[:, 0], None, kind)
            )
        return self._decoded(block, pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema), refused)

    def _ids(self, feature: int, values: npt.NDArray[Any], path: str) -> tuple[npt.NDArray[Any], U8]:
        """([rows, ids a row] of the column's type, reasons uint8 [rows])"""
        declared = self.schema.stored_sparse[feature]
        rows, width = values.shape
        if self._multi_hot is not None and width > 1:
            raise SchemaError(f"{path}: sparse {declared.name!r} has {width} ids a row already: no multi_hot tables")
        hot = width if self._multi_hot is None else self._multi_hot.hot[feature]
        if hot > 1 and not declared.multi_hot:
            raise SchemaError(f"{path}: sparse {declared.name!r} has {hot} ids a row: declare it multi_hot")
        kind = column_kind(declared)
        ids, reasons = fit(values.reshape(-1), kind, wrap_negative=self._wrap_negative_ids)
        ids, reasons = ids.reshape(rows, width), reasons.reshape(rows, width).max(axis=1, initial=0)
        if (modulo := self._modulo[feature]) is not None:
            ids = ids % ids.dtype.type(modulo)
        if self._multi_hot is not None:
            ids = self._multi_hot.expand(feature, ids[:, 0].astype(np.uint64)).astype(ids.dtype)
        return ids, reasons

    def _value(self, block: ArrayBlock, row: int, column: int) -> object:
        labels = len(self.schema.labels)
        if column < labels:
            return block.data.labels[row]
        if column < labels + NUM_DENSE:
            return block.data.dense[row, column - labels]
        return block.data.sparse[column - labels - NUM_DENSE][row].tolist()


def _check_schema(schema: Schema) -> None:
    if len(schema.labels) > 1 or len(schema.dense) != NUM_DENSE or len(schema.stored_sparse) != NUM_SPARSE:
        raise SchemaError(
            f"these files have a label, {NUM_DENSE} dense and {NUM_SPARSE} sparse columns; the schema declares "
            f"{len(schema.labels)}, {len(schema.dense)} and {len(schema.stored_sparse)}"
        )


def _moduli(modulo: int | Sequence[int] | None) -> list[int | None]:
    if modulo is None:
        return [None] * NUM_SPARSE
    numbers = list(modulo) if isinstance(modulo, Sequence) else [modulo] * NUM_SPARSE
    if len(numbers) != NUM_SPARSE:
        raise ValueError(f"modulo: {len(numbers)} numbers for {NUM_SPARSE} features")
    return [check_integer("modulo", number, 1, 2**31 - 1) for number in numbers]


def _lists(ids: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    rows, width = ids.shape
    elements = to_arrow(ids.reshape(-1), None, kind.value_type)
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * width, pa.int32()), elements, type=kind)
