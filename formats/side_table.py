"""A small table that rows are joined with by a key: read once, held in memory as Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow_buffers import null_mask, primitive_values
from headrace.formats.checks import check_text, check_type
from headrace.formats.file_reader import FileReader
from headrace.formats.schema import Dense, Schema, SchemaError, Sparse
from headrace.formats.text_values import U64, Bool

I64 = npt.NDArray[np.int64]


class SideTable:
    """The rows of `reader`, to be found by their column `key` (one 64-bit id each, never missing).

    Columns are those of the reader's schema but the key. SchemaError for a key that is no column of ids or integers.
    ValueError for a row without a key, and for a key that two rows have, with both places: a join must not choose.
    """

    def __init__(self, reader: FileReader[Any], key: str) -> None:
        check_type("reader", reader, FileReader, "a reader of files, as DelimitedFiles(path, schema, text_format)")
        check_text("key", key)
        check_key(reader.schema, key, "a side table")
        if key not in reader.schema.column_names:
            raise SchemaError(f"a side table has no column {key!r}, its key")
        blocks = [reader.settle(reader.decode(block)) for block in reader.raw_blocks()]
        schema = reader.schema.arrow_schema(labels=bool(reader.schema.labels))
        table = pa.Table.from_batches([block.data for block in blocks], schema).combine_chunks()
        keys, no_key = key_words(_only_chunk(table.column(key)))
        if no_key is not None and no_key.any():
            raise ValueError(f"{_place(blocks, int(np.argmax(no_key)))}: has no {key}, by which rows are found")
        order = np.argsort(keys, kind="stable").astype(np.int64)
        self._keys: U64 = keys[order]
        self._order = order
        same = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if len(same):
            at = sorted(order[same[0] : same[0] + 2].tolist())
            places = [_place(blocks, row) for row in at]
            raise ValueError(f"{places[0]} and {places[1]}: both have {key} {int(self._keys[same[0]])}")
        self.columns = {name: _only_chunk(table.column(name)) for name in table.column_names if name != key}
        self.files = reader.files
        self.rows_skipped = reader.rows_skipped

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, keys: U64, missing: Bool | None) -> tuple[I64, Bool]:
        """(row int64 [n], arbitrary where nothing is found; bool [n] whether there is one). A missing key has none."""
        if not len(self._keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found: Bool = self._keys[at] == keys
        return self._order[at], found if missing is None else found & ~missing

    def take(self, column: str, rows: I64, found: Bool) -> pa.Array:
        """A column's values at `rows`; null where nothing was found."""
        return self.columns[column].take(pa.array(rows, mask=~found))


def check_key(schema: Schema, name: str, owner: str) -> None:
    """SchemaError for a column of `schema` that holds no single integer a row: what is no id would be cut to one."""
    label, dense, sparse = (
        next((c for c in kind if c.name == name), None) for kind in (schema.labels, schema.dense, schema.sparse)
    )
    if label is not None or (isinstance(dense, Dense) and dense.dtype != "int64"):
        raise SchemaError(f"column {name!r}: the key or time of {owner} is an id or an int64, not a float")
    if isinstance(sparse, Sparse) and (sparse.multi_hot or sparse.derived):
        raise SchemaError(f"column {name!r}: the key or time of {owner} is one id a row, as files have it")


def key_words(array: pa.Array) -> tuple[U64, Bool | None]:
    """(ids as uint64 [n], missing or None) of a column of integers."""
    values = primitive_values(array)
    return values.view(np.uint64) if values.dtype == np.int64 else values.astype(np.uint64), null_mask(array)


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _place(blocks: Sequence[Any], row: int) -> str:
    for block in blocks:
        if row < block.num_rows:
            file, line = block.source.locate(row)
            return f"{file}: row {line}"
        row -= block.num_rows
    raise IndexError(row)
