"""Rows of one table by raw id, from elsewhere and to elsewhere: pretrained vectors in, trained ones out.

A Parquet file (or Arrow table) of rows has the columns `id` (an integer of up to 64 bits), `vector` (a list of `dim`
floats) and, if any, `missing` (bool: the row of the missing value, whose id is ignored).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from headrace.embed.arrays import F32, Array, Bool, array_of
from headrace.embed.finite import first_not_finite
from headrace.embed.key_lookup import FindsRows, TableIds, check_finds_rows, check_ids, find_rows, group_of_tables
from headrace.embed.row_keys import RowKeys
from headrace.embed.stage import EmbeddingStage
from headrace.formats.atomic_file import AtomicFile, sync_folder
from headrace.formats.checks import check_type

TABLE_KEY = b"headrace.table"
"""Metadata of a file: the table whose rows it has."""

_BLOCK_ROWS = 1 << 16


def import_rows(
    stage: EmbeddingStage, index: FindsRows, table: str, ids: Any, vectors: Any, *, missing: Bool | None = None
) -> int:
    """Set the rows of ids [n] of `table` to vectors [n, dim] (floats), with fresh optimizer state; their number.

    Keys that the index does not know get rows. TypeError or ValueError, which name table and id, before anything
    changes: ids that are no integers or come twice, vectors of another shape or dtype, or not finite as float32.
    RuntimeError while a loader that shares the index has read ahead. MemoryError: no row is set; keys that were new
    may have got theirs, which start as the initialiser says.
    """
    _check_arguments(stage, index, table)
    owner, array = f"table {table!r}", check_ids(table, ids)
    if table not in group_of_tables(stage.schema):
        raise ValueError(f"{owner} is not in the schema; its tables: {', '.join(group_of_tables(stage.schema))}")
    mask = np.zeros(len(array), np.bool_) if missing is None else array_of(missing, f"{owner}: flags of missing")
    if mask.dtype != np.bool_ or mask.shape != array.shape:
        raise ValueError(f"{owner}: missing is {mask.dtype} {list(mask.shape)}, not bool [{len(array)}]")
    group = group_of_tables(stage.schema)[table]
    values = _check_vectors(owner, _as_array(owner, vectors), (len(array), stage.layout.groups[group].dim))
    bad = first_not_finite(values)
    if bad is not None:
        raise ValueError(f"{owner}: the vector of {_name(array, mask, bad)} (position {bad}) is not finite in float32")
    _check_once(owner, array, mask)
    stage.use_index(index, "the index given")
    whole = np.zeros((len(array), stage.stores[group].width), np.float32)  # before any key is inserted
    rows = find_rows(index, stage.schema, {table: TableIds(array, mask)}, stage, insert=True)[table]
    whole[rows.query_ids, : values.shape[1]] = values
    stage.write_rows(group, rows.keys, whole)
    return len(array)


def import_table(stage: EmbeddingStage, index: FindsRows, table: str, source: pa.Table | str | os.PathLike[str]) -> int:
    """:func:`import_rows` from a Parquet file or Arrow table; errors name the file.

    Checksums of pages are verified where the file has them (those of :func:`export_table` do). FileNotFoundError, or
    ValueError for a file that is damaged.
    """
    _check_arguments(stage, index, table)
    wanted = "a pyarrow.Table, or the path of a Parquet file"
    check_type("source", source, (pa.Table, str, os.PathLike), wanted)
    if isinstance(source, pa.Table):
        return _import(stage, index, table, source)
    path = os.fspath(source)
    try:
        return _import(stage, index, table, pq.read_table(path, page_checksum_verification=True))
    except (ValueError, TypeError, pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and error.errno):
            raise  # the system's; others are what Arrow says of the bytes
        raise ValueError(f"{path}: {error}") from error


def export_table(stage: EmbeddingStage, index: FindsRows, table: str, path: str | os.PathLike[str]) -> int:
    """Write the newest vectors of all rows of `table` that the index knows, by location, to a Parquet file with the
    columns `id` uint64, `missing` bool and `vector`; the number of rows. The file appears whole or not at all.

    Over ranks each writes the rows that it owns, to a file of its own; all ranks call it, at the same place.
    """
    _check_arguments(stage, index, table)
    groups = group_of_tables(stage.schema)
    if table not in groups:
        raise ValueError(f"table {table!r} is not in the schema; its tables: {', '.join(groups)}")
    stage.use_index(index, "the index given")
    keys = _keys_of(index, next(t.uid for t in stage.schema.tables if t.name == table))
    dim = stage.layout.groups[groups[table]].dim
    schema = pa.schema(
        [("id", pa.uint64()), ("missing", pa.bool_()), ("vector", pa.list_(pa.float32(), dim))],
        metadata={TABLE_KEY: table},
    )
    target = Path(path)
    with AtomicFile(target) as file:
        with pq.ParquetWriter(pa.PythonFile(_Sink(file), mode="w"), schema, write_page_checksum=True) as writer:
            for start in range(0, len(keys.ids), _BLOCK_ROWS):
                part = keys.take(np.arange(start, min(start + _BLOCK_ROWS, len(keys.ids))))
                writer.write_table(_block(part, stage.read_vectors(groups[table], part), schema))
        file.finish()
        file.publish()
    sync_folder(file.target.parent)
    return len(keys.ids)


def _check_arguments(stage: object, index: object, table: object) -> None:
    check_type("stage", stage, EmbeddingStage, "a headrace.EmbeddingStage")
    check_finds_rows(index)
    check_type("table", table, str, "the name of a table of the schema")


class _Sink:
    """What Arrow needs of a file to write to."""

    def __init__(self, file: AtomicFile) -> None:
        self._file = file
        self._written = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """The file is flushed when it is finished."""

    def close(self) -> None:
        self.closed = True


def _block(keys: RowKeys, vectors: F32, schema: pa.Schema) -> pa.Table:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.table([pa.array(keys.ids), pa.array(keys.missing), column], schema=schema)


def _keys_of(index: FindsRows, uid: int) -> RowKeys:
    snapshot = index.snapshot()
    columns = {name: snapshot.column(name).to_numpy() for name in ("location", "id", "table_uid", "missing")}
    mine = columns["table_uid"] == uid
    location, ids, tables, missing = (np.ascontiguousarray(c[mine]) for c in columns.values())
    return RowKeys(location, ids, tables, missing)


def _import(stage: EmbeddingStage, index: FindsRows, table: str, source: pa.Table) -> int:
    written_for = (source.schema.metadata or {}).get(TABLE_KEY)
    if written_for is not None and written_for != table.encode():
        raise ValueError(
            f"rows of table {written_for.decode(errors='replace')!r}, as its metadata says, not of {table!r}; if they "
            "are meant for it, pass pq.read_table(path).replace_schema_metadata()"
        )
    lost = {"id", "vector"} - set(source.column_names)
    if lost:
        raise ValueError(f"no column {sorted(lost)[0]!r} among {', '.join(source.column_names)}")
    names = [name for name in ("id", "vector", "missing") if name in source.column_names]
    for name in names:
        if source.column_names.count(name) > 1:
            raise ValueError(f"column {name!r} comes {source.column_names.count(name)} times")
    columns = {name: source.column(name).combine_chunks() for name in names}
    for name, column in columns.items():
        if column.null_count:
            raise ValueError(f"column {name!r} has {column.null_count} nulls")
    missing = columns["missing"].to_numpy(zero_copy_only=False) if "missing" in columns else None
    ids = columns["id"].to_numpy(zero_copy_only=False)
    return import_rows(stage, index, table, ids, _matrix(columns["vector"]), missing=missing)


def _matrix(column: pa.Array) -> Array:
    """Lists of equal length as a matrix."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise TypeError(f"column 'vector' of {column.type}, not lists of floats")
    values = column.flatten()
    if values.null_count:
        raise ValueError(f"column 'vector' has {values.null_count} nulls inside")
    flat = values.to_numpy(zero_copy_only=False)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if len(lengths) == 0:
        return np.empty((0, getattr(column.type, "list_size", 0)), flat.dtype)
    other = np.flatnonzero(lengths != lengths[0])
    if len(other):
        raise ValueError(f"vectors of {lengths[0]} and {lengths[other[0]]} values (row {other[0]})")
    matrix: Array = flat.reshape(len(lengths), -1)
    return matrix


def _as_array(owner: str, vectors: Any) -> Array:
    if isinstance(vectors, torch.Tensor) and vectors.dtype == torch.bfloat16:  # which NumPy has not
        vectors = vectors.float()
    return array_of(vectors, f"{owner}: vectors")


def _check_vectors(owner: str, vectors: Array, shape: tuple[int, int]) -> F32:
    if vectors.dtype.kind != "f":
        raise TypeError(f"{owner}: vectors of {vectors.dtype}, not floats")
    if vectors.shape != shape:
        raise ValueError(f"{owner}: vectors of shape {list(vectors.shape)} for {shape[0]} ids of dim {shape[1]}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(vectors, np.float32)


def _check_once(owner: str, ids: Array, missing: Bool) -> None:
    present = np.flatnonzero(~missing)
    order = present[np.argsort(ids[present], kind="stable")]
    twice = order[1:][ids[order[1:]] == ids[order[:-1]]]
    if len(twice):
        raise ValueError(f"{owner}: {_name(ids, missing, int(twice[0]))} comes twice")
    if missing.sum() > 1:
        raise ValueError(f"{owner}: the missing value comes twice")


def _name(ids: Array, missing: Bool, at: int) -> str:
    return "the missing value" if missing[at] else f"id {int(ids[at])}"
