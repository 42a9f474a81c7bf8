"""Snapshot of an index as an Arrow table: packed, verified, written and read.

Columns `table_uid` uint32, `missing` bool, `id` uint64, `location` uint64: the committed rows, sorted by location. The
schema's metadata holds, as JSON under ``headrace.index``: `version`, `num_shards`, `chunk_rows`, `owner_rank`,
`tables` ([uid, group] each), `chunks` (for each shard the [group, committed rows] of its chunks, in the order in which
it took them), and `digest`, a blake2b over all of this and the columns.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.indexer.checks import check_integer
from headrace.indexer.core import CutArrays
from headrace.indexer.indexed import CHUNK_ROWS, OFFSET_BITS, PLACE_BITS, U32, IndexTable

VERSION = 1
_KEY = b"headrace.index"
_SCHEMA = pa.schema(
    [
        pa.field("table_uid", pa.uint32(), nullable=False),
        pa.field("missing", pa.bool_(), nullable=False),
        pa.field("id", pa.uint64(), nullable=False),
        pa.field("location", pa.uint64(), nullable=False),
    ]
)


class Identity(NamedTuple):
    """What a snapshot shares with the index that it is of."""

    tables: tuple[IndexTable, ...]
    num_shards: int
    owner_rank: int


def pack(cut: CutArrays, identity: Identity) -> pa.Table:
    ends = np.cumsum(cut.chunk_counts).tolist()
    pairs = list(zip(cut.chunk_groups.tolist(), cut.chunk_rows.tolist(), strict=True))
    header: dict[str, Any] = {
        "version": VERSION,
        "num_shards": identity.num_shards,
        "chunk_rows": CHUNK_ROWS,
        "owner_rank": identity.owner_rank,
        "tables": [[t.uid, t.group] for t in identity.tables],
        "chunks": [pairs[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)],
    }
    columns = [cut.table_uids, cut.missing, cut.ids, cut.locations]
    header["digest"] = _digest(header, columns)
    return pa.table([pa.array(c) for c in columns], schema=_SCHEMA.with_metadata({_KEY: json.dumps(header)}))


def unpack(table: pa.Table, identity: Identity) -> tuple[U32, CutArrays]:
    """(table ordinals uint32 [rows], the cut) of a snapshot for an index of that identity. ValueError says what is
    wrong; what is left to the kernel is that each key belongs to its shard and none comes twice."""
    header = _header(table)
    columns = [_column(table, field) for field in _SCHEMA]
    if header.pop("digest", None) != _digest(header, columns):
        raise ValueError("the snapshot's content does not match its digest: it is damaged; take an earlier one")
    group_of = _check_header(header, identity)
    counts, groups, rows = _chunks(header.get("chunks"), identity)
    uids, missing, ids, locations = columns
    cut = CutArrays(uids, missing, ids, locations, counts, groups, rows)
    _check_places(cut, identity)
    return _ordinals(cut, identity, group_of), cut


def write(table: pa.Table, path: Path) -> None:
    """Write to a temporary file of its own beside `path`, flush it to the disk, rename: the last writer wins, whole."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with open(descriptor, "wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # mkstemp makes it private
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: Path) -> pa.Table:
    """The table of a snapshot file, not verified yet. ValueError, naming the file, if it is no whole Arrow file."""
    try:
        # Slices of bytes in memory: a damaged length cannot ask for more than there is.
        with pa.ipc.open_file(pa.py_buffer(path.read_bytes())) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a whole snapshot file: {error}") from error
    return table


def _digest(header: dict[str, Any], columns: Sequence[np.ndarray[Any, Any]]) -> str:
    state = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=32)
    for column in columns:
        state.update(np.ascontiguousarray(column).view(np.uint8).data)
    return state.hexdigest()


def _header(table: pa.Table) -> dict[str, Any]:
    if not isinstance(table, pa.Table) or _KEY not in (table.schema.metadata or {}):
        raise ValueError("not a snapshot of an index: the schema's metadata has no 'headrace.index'")
    try:
        header = json.loads(table.schema.metadata[_KEY])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the snapshot's header is not JSON: {error}") from error
    if not isinstance(header, dict) or header.get("version") != VERSION:
        version = header.get("version") if isinstance(header, dict) else None
        raise ValueError(f"snapshot version {version!r}; this code reads version {VERSION}")
    if not table.schema.equals(_SCHEMA):
        raise ValueError(f"the snapshot has columns {table.schema.names} of types {table.schema.types}")
    return header


def _column(table: pa.Table, field: pa.Field) -> np.ndarray[Any, Any]:
    column = table.column(field.name)
    if column.null_count:
        raise ValueError(f"snapshot column {field.name} has nulls")
    return np.ascontiguousarray(column.to_numpy())


def _check_header(header: dict[str, Any], identity: Identity) -> dict[int, int]:
    """Groups by table uid of the index."""
    for name, own in (
        ("num_shards", identity.num_shards),
        ("chunk_rows", CHUNK_ROWS),
        ("owner_rank", identity.owner_rank),
    ):
        if header.get(name) != own:
            raise ValueError(f"the snapshot has {name} {header.get(name)!r}, the index {own}")
    group_of = {t.uid: t.group for t in identity.tables}
    for uid, group in _pairs(header.get("tables"), "tables", (1 << 32) - 1, (1 << 16) - 1):
        if group_of.get(uid) != group:
            raise ValueError(
                f"the snapshot has table uid {uid} in group {group}, the index "
                + (f"in group {group_of[uid]}" if uid in group_of else "has no such table")
            )
    return group_of


def _chunks(shards: object, identity: Identity) -> tuple[Any, U32, U32]:
    """Chunks of each shard, their groups and rows; all but the last of a group in its shard are full."""
    if not isinstance(shards, list) or len(shards) != identity.num_shards:
        raise ValueError("the snapshot's chunk list does not have one entry a shard")
    last_group = max((t.group for t in identity.tables), default=-1)
    flat: list[tuple[int, int]] = []
    for shard, chunks in enumerate(shards):
        pairs = _pairs(chunks, f"chunks of shard {shard}", last_group, CHUNK_ROWS)
        unfilled: set[int] = set()
        for group, rows in pairs:
            if rows == 0 or group in unfilled:
                raise ValueError(f"the snapshot's chunks of shard {shard} are not filled in order")
            if rows < CHUNK_ROWS:
                unfilled.add(group)
        flat += pairs
    counts = np.array([len(chunks) for chunks in shards], np.int64)
    groups, rows_of = np.array(flat, np.uint32).reshape(-1, 2).T
    return counts, np.ascontiguousarray(groups), np.ascontiguousarray(rows_of)


def _pairs(items: object, name: str, most_first: int, most_second: int) -> list[tuple[int, int]]:
    if not isinstance(items, list) or not all(isinstance(item, list) and len(item) == 2 for item in items):
        raise ValueError(f"the snapshot's {name} are not a list of pairs")
    try:
        return [(check_integer(name, a, 0, most_first), check_integer(name, b, 0, most_second)) for a, b in items]
    except (TypeError, ValueError) as error:
        raise ValueError(f"the snapshot's header: {error}") from error


def _check_places(cut: CutArrays, identity: Identity) -> None:
    """The locations are those of the chunks' rows, each once, in order."""
    shards = np.repeat(np.arange(identity.num_shards), cut.chunk_counts)
    firsts = np.cumsum(cut.chunk_counts) - cut.chunk_counts
    numbers = (np.arange(len(shards)) - firsts[shards]) * identity.num_shards + shards  # chunk numbers, shard by shard
    if len(numbers) and numbers.max() >= 1 << (PLACE_BITS - OFFSET_BITS):
        raise ValueError("the snapshot has more chunks than there are chunk numbers")
    order = np.argsort(numbers)
    rows = cut.chunk_rows[order].astype(np.int64)
    if rows.sum() != len(cut.locations):
        raise ValueError(f"the snapshot has {len(cut.locations)} rows, its chunks {rows.sum()}")
    starts = np.cumsum(rows) - rows
    owner_bits = np.uint64(identity.owner_rank) << np.uint64(PLACE_BITS)
    chunk_bits = owner_bits | (numbers[order].astype(np.uint64) << np.uint64(OFFSET_BITS))
    offsets = (np.arange(rows.sum()) - np.repeat(starts, rows)).astype(np.uint64)
    wrong = np.flatnonzero(cut.locations != (np.repeat(chunk_bits, rows) | offsets))
    if len(wrong):
        raise ValueError(
            f"snapshot row {wrong[0]} has location {cut.locations[wrong[0]]:#x}, which is out of range, out of "
            f"order, or there twice"
        )


def _ordinals(cut: CutArrays, identity: Identity, group_of: dict[int, int]) -> U32:
    """Ordinals of the rows' tables; each row lies in a chunk of its table's group, and a missing key has id 0."""
    uids = np.array(sorted(group_of), np.uint32)
    at = np.searchsorted(uids, cut.table_uids)
    known = at < len(uids)
    known[known] = uids[at[known]] == cut.table_uids[known]
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise ValueError(f"snapshot row {row} is of table uid {cut.table_uids[row]}, which the index does not have")
    ordinal_of = {t.uid: ordinal for ordinal, t in enumerate(identity.tables)}
    ordinals = np.array([ordinal_of[int(u)] for u in uids], np.uint32)[at]
    chunk = (cut.locations >> np.uint64(OFFSET_BITS)) & np.uint64((1 << (PLACE_BITS - OFFSET_BITS)) - 1)
    shard, k = chunk % np.uint64(identity.num_shards), chunk // np.uint64(identity.num_shards)
    firsts = (np.cumsum(cut.chunk_counts) - cut.chunk_counts).astype(np.uint64)
    group = np.array([group_of[int(u)] for u in uids], np.uint32)[at]
    wrong = np.flatnonzero(
        (cut.chunk_groups[(firsts[shard] + k).astype(np.int64)] != group) | (cut.missing & (cut.ids != 0))
    )
    if len(wrong):
        raise ValueError(f"snapshot row {wrong[0]} lies in a chunk of another group, or is missing and has an id")
    return ordinals
