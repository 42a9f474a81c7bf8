"""Snapshot of an index as Arrow data: packed, verified and restored, shard by shard; files: `snapshot_file.py`.

Columns `table_uid` uint32, `missing` bool, `id` uint64, `location` uint64 and `uses` float32: the committed rows, one
record batch a shard, each sorted by location. The schema's metadata holds, as JSON under ``headrace.index``: `version`,
`num_shards`, `chunk_rows`, `owner_rank`, `tables` ([uid, group] each), `counted_batches`, `half_life`, `rows` (of each
shard) and `chunks` (for each shard the [group, extent] of its chunks, in the order in which it took them; a place up to
the extent that no row is at is free). `uses` are as :class:`~headrace.indexer.dit.DIT` stores them, null where nothing
was counted. Each shard has a blake2b over the header, its number and its rows: in a table all of them as JSON under
``headrace.digests``, in a file each in the metadata of its batch, so that neither writing nor reading needs more than a
shard in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.indexer.checks import check_integer
from headrace.indexer.core import IndexCore, IndexCut
from headrace.indexer.indexed import CHUNK_ROWS, OFFSET_BITS, PLACE_BITS, U32, U64, IndexTable
from headrace.indexer.memory import check_memory

VERSION = 2
KEY = b"headrace.index"
DIGESTS_KEY = b"headrace.digests"
DIGEST_KEY = b"headrace.digest"
NOT_A_SNAPSHOT = "not a snapshot of an index: the schema's metadata has no 'headrace.index'"

MOST_COUNTED = 1 << 40
"""Batches: a century of 300 a second. Far below 2^53, beyond which a float counts no single one any more."""

_ROW_BYTES = 19
_HOLES_BYTES = 4096
_SLAB_BYTES, _SLAB_CHUNKS = 1 << 21, 32
"""What a restored index takes: an entry at the densest, the bits of a chunk with holes, the counts of a few chunks."""

_SCHEMA = pa.schema(
    [
        pa.field("table_uid", pa.uint32(), nullable=False),
        pa.field("missing", pa.bool_(), nullable=False),
        pa.field("id", pa.uint64(), nullable=False),
        pa.field("location", pa.uint64(), nullable=False),
        pa.field("uses", pa.float32()),
    ]
)


class Identity(NamedTuple):
    """What a snapshot shares with the index that it is of."""

    tables: tuple[IndexTable, ...]
    num_shards: int
    owner_rank: int
    half_life: float | None


class Shard(NamedTuple):
    """One shard of a snapshot, its rows in the order of their locations."""

    batch: pa.RecordBatch
    digest: str


# --- from an index


def pack(cut: IndexCut, identity: Identity) -> pa.Table:
    schema = schema_of(cut, identity)
    shards = list(shards_of(cut, identity, schema))
    digests = json.dumps([shard.digest for shard in shards])
    schema = schema.with_metadata({**schema.metadata, DIGESTS_KEY: digests})
    table = pa.Table.from_batches([shard.batch for shard in shards])
    return table.replace_schema_metadata(schema.metadata)


def schema_of(cut: IndexCut, identity: Identity) -> pa.Schema:
    chunks = [cut.chunks(shard) for shard in range(identity.num_shards)]
    header: dict[str, Any] = {
        "version": VERSION,
        "num_shards": identity.num_shards,
        "chunk_rows": CHUNK_ROWS,
        "owner_rank": identity.owner_rank,
        "tables": [[t.uid, t.group] for t in identity.tables],
        "counted_batches": cut.counted_batches,
        "half_life": identity.half_life,
        "rows": [cut.num_rows(shard) for shard in range(identity.num_shards)],
        "chunks": [list(zip(groups, extents, strict=True)) for groups, extents in chunks],
    }
    return _SCHEMA.with_metadata({KEY: json.dumps(header)})


def shards_of(cut: IndexCut, identity: Identity, schema: pa.Schema) -> Iterator[Shard]:
    uids = np.array([t.uid for t in identity.tables], np.uint32)
    for number in range(identity.num_shards):
        rows = cut.shard_rows(number)
        uses = pa.nulls(len(rows.tables), pa.float32()) if rows.weights is None else pa.array(rows.weights)
        columns = [uids[rows.tables], rows.missing, rows.ids, rows.locations]
        batch = pa.record_batch([*map(pa.array, columns), uses], schema=schema)
        yield Shard(batch, _digest(schema.metadata[KEY], number, batch))


def _digest(header: bytes, number: int, batch: pa.RecordBatch) -> str:
    state = hashlib.blake2b(header, digest_size=32, person=str(number).encode())
    for column in batch.columns:
        if column.null_count:
            state.update(b"null")
        else:
            state.update(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)).view(np.uint8).data)
    return state.hexdigest()


# --- into an index


def restore_table(table: pa.Table, identity: Identity, core: IndexCore) -> None:
    """ValueError says what is wrong with the table; then, as after any error, the index is empty still."""
    if not isinstance(table, pa.Table) or KEY not in (table.schema.metadata or {}):
        raise ValueError(NOT_A_SNAPSHOT)
    header = Header(table.schema, identity)
    digests = _json(table.schema.metadata.get(DIGESTS_KEY, b"null"))
    if not isinstance(digests, list) or len(digests) != identity.num_shards or table.num_rows != sum(header.rows):
        raise ValueError("the snapshot's rows or digests are not those of its shards: it is damaged")
    starts = np.cumsum([0, *header.rows]).tolist()

    def shards() -> Iterator[Shard]:
        for start, rows, digest in zip(starts, header.rows, digests, strict=False):
            part = table.slice(start, rows).combine_chunks().to_batches()
            yield Shard(part[0] if part else _empty(table.schema), digest)

    restore_shards(shards(), header, core)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)


def restore_shards(shards: Iterator[Shard], header: Header, core: IndexCore) -> None:
    """The shards in their order. ValueError, MemoryError: then nothing has changed."""
    header.check_memory()
    places, weights = [], []
    try:
        for number, shard in enumerate(shards):
            if shard.digest != _digest(header.raw, number, shard.batch):
                raise ValueError(
                    f"the snapshot's shard {number} does not match its digest: it is damaged; take another"
                )
            uids, missing, ids, locations, uses = (_column(shard.batch, field) for field in _SCHEMA)
            if not ((uses >= 0) & (uses < np.inf)).all():
                raise ValueError(f"the snapshot's shard {number} has uses that are negative, infinite or no numbers")
            if header.counted_batches == 0 and uses.any():
                raise ValueError(f"the snapshot's shard {number} has uses, of no counted batches")
            tables = header.check_rows(number, uids, missing, ids, locations)
            core.restore_shard(number, *header.chunks[number], tables, missing.view("u1"), ids, locations)
            if header.counted_batches:
                places.append(locations)
                weights.append(uses)
        if header.counted_batches:
            core.finish_restore(header.counted_batches, np.concatenate(places), np.concatenate(weights))
        else:
            core.finish_restore(0, np.empty(0, np.uint64), np.empty(0, np.float32))
    finally:
        core.drop_restore()


def _column(batch: pa.RecordBatch, field: pa.Field) -> Any:
    column = batch.column(field.name)
    if column.null_count == len(column) and field.nullable:
        return np.zeros(len(column), np.float32)
    if column.null_count:
        raise ValueError(f"snapshot column {field.name} has nulls")
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False))


def _json(text: bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unambiguous, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the snapshot's header is not JSON: {error}") from error


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("it has a name twice")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class Header:
    """The checked header of a snapshot for an index of that identity."""

    def __init__(self, schema: pa.Schema, identity: Identity) -> None:
        self.raw: bytes = schema.metadata[KEY]
        header = _json(self.raw)
        if not isinstance(header, dict) or type(header.get("version")) is not int or header["version"] != VERSION:
            version = header.get("version") if isinstance(header, dict) else None
            raise ValueError(f"snapshot version {version!r}; this code reads version {VERSION}")
        if not schema.equals(_SCHEMA):
            raise ValueError(f"the snapshot has columns {schema.names} of types {schema.types}")
        if header.keys() != _FIELDS.keys():
            wrong = ", ".join(sorted(header.keys() ^ _FIELDS.keys()))
            raise ValueError(f"the snapshot's header does not have the fields of version {VERSION}: {wrong}")
        fields = {name: check(name, header[name], identity) for name, check in _FIELDS.items()}
        self.identity = identity
        self.group_of: dict[int, int] = fields["tables"]
        self.rows: list[int] = fields["rows"]
        self.counted_batches: int = fields["counted_batches"]
        self.chunks: list[tuple[list[int], list[int]]] = fields["chunks"]
        self.uids = np.array(sorted(self.group_of), np.uint32)
        ordinal_of = {t.uid: ordinal for ordinal, t in enumerate(identity.tables)}
        self.ordinals = np.array([ordinal_of[int(u)] for u in self.uids], np.uint32)
        self.groups = np.array([self.group_of[int(u)] for u in self.uids], np.uint32)

    def check_memory(self) -> None:
        """MemoryError, before anything is asked for, unless the index that it describes can be held: a few rows spread
        over many chunks take a few bytes here and a page each there. Chunks without a row take next to nothing."""
        needed = sum(self.rows) * _ROW_BYTES
        for rows, (_, extents) in zip(self.rows, self.chunks, strict=True):
            needed += min(len(extents), rows) * _HOLES_BYTES if sum(extents) > rows else 0
        if self.counted_batches:
            num_chunks = sum(len(extents) for _, extents in self.chunks)
            needed += min(-(-num_chunks // _SLAB_CHUNKS), sum(self.rows)) * _SLAB_BYTES
        check_memory(f"the index of this snapshot ({sum(self.rows):,} rows)", needed)

    def check_rows(self, number: int, uids: U32, missing: Any, ids: U64, locations: U64) -> U32:
        """Ordinals of a shard's rows' tables. Each row lies in a chunk of its table's group, in the order of the
        locations, and a missing key has id 0; what is left to the kernel is that the key belongs to the shard and comes
        once."""
        if len(uids) != self.rows[number]:
            raise ValueError(f"the snapshot's shard {number} has {len(uids)} rows, its header {self.rows[number]}")
        at = np.searchsorted(self.uids, uids)
        known = at < len(self.uids)
        known[known] = self.uids[at[known]] == uids[known]
        self._refuse(number, ~known, lambda row: f"is of table uid {uids[row]}, which is none of its tables")
        groups, extents = (np.array(part, np.uint32) for part in self.chunks[number])
        chunk = (locations >> np.uint64(OFFSET_BITS)) & np.uint64((1 << (PLACE_BITS - OFFSET_BITS)) - 1)
        k = (chunk // np.uint64(self.identity.num_shards)).astype(np.int64)
        wrong = (locations >> np.uint64(PLACE_BITS)) != np.uint64(self.identity.owner_rank)
        wrong |= (chunk % np.uint64(self.identity.num_shards) != np.uint64(number)) | (k >= len(groups))
        wrong[~wrong] = (locations[~wrong] & np.uint64(CHUNK_ROWS - 1)) >= extents[k[~wrong]]
        wrong[1:] |= locations[1:] <= locations[:-1]
        self._refuse(
            number, wrong, lambda row: f"has location {locations[row]:#x}, out of range, out of order, or there twice"
        )
        misplaced = (groups[k] != self.groups[at]) | (missing & (ids != 0))
        self._refuse(number, misplaced, lambda _: "lies in a chunk of another group, or is missing and has an id")
        return self.ordinals[at]

    @staticmethod
    def _refuse(number: int, wrong: Any, why: Any) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(f"snapshot row {row} of shard {number} {why(row)}")


# --- the fields of a header: each checked by one function of its name, its value and the index's identity


def _own(name: str, value: object, identity: Identity) -> int:
    """One that an integer of the index must equal."""
    own = CHUNK_ROWS if name == "chunk_rows" else getattr(identity, name)
    if type(value) is not int or value != own:
        raise ValueError(f"the snapshot has {name} {value!r}, the index {own}")
    return value


def _half_life(name: str, value: object, identity: Identity) -> float | None:
    """A number, or null: JSON does not tell 4 from 4.0."""
    if (value is not None and type(value) not in (int, float)) or value != identity.half_life:
        raise ValueError(f"the snapshot has {name} {value!r}, the index {identity.half_life}")
    return identity.half_life


def _tables(name: str, value: object, identity: Identity) -> dict[int, int]:
    """Groups by table uid, of the snapshot; each is a table of the index in the same group."""
    group_of = {t.uid: t.group for t in identity.tables}
    pairs = _pairs(value, name, (1 << 32) - 1, (1 << 16) - 1)
    for uid, group in pairs:
        if group_of.get(uid) != group:
            raise ValueError(
                f"the snapshot has table uid {uid} in group {group}, the index "
                + (f"in group {group_of[uid]}" if uid in group_of else "has no such table")
            )
    if len({uid for uid, _ in pairs}) < len(pairs):
        raise ValueError("the snapshot has a table uid twice")
    return dict(pairs)


def _counted_batches(name: str, value: object, identity: Identity) -> int:
    return _integer(name, value, MOST_COUNTED)


def _rows(name: str, value: object, identity: Identity) -> list[int]:
    if not isinstance(value, list) or len(value) != identity.num_shards:
        raise ValueError(f"the snapshot's {name} do not have one entry a shard")
    return [_integer(name, item, (1 << 63) - 1) for item in value]


def _chunks(name: str, shards: object, identity: Identity) -> list[tuple[list[int], list[int]]]:
    """Groups and extents of each shard's chunks; all but the last of a group in its shard are full."""
    if not isinstance(shards, list) or len(shards) != identity.num_shards:
        raise ValueError("the snapshot's chunk list does not have one entry a shard")
    last_group = max((t.group for t in identity.tables), default=-1)
    most = 1 << (PLACE_BITS - OFFSET_BITS)
    out = []
    for shard, chunks in enumerate(shards):
        pairs = _pairs(chunks, f"chunks of shard {shard}", last_group, CHUNK_ROWS)
        unfilled: set[int] = set()
        for group, extent in pairs:
            if extent == 0 or group in unfilled:
                raise ValueError(f"the snapshot's chunks of shard {shard} are not filled in order")
            if extent < CHUNK_ROWS:
                unfilled.add(group)
        if pairs and (len(pairs) - 1) * identity.num_shards + shard >= most:
            raise ValueError("the snapshot has more chunks than there are chunk numbers")
        out.append(([group for group, _ in pairs], [extent for _, extent in pairs]))
    return out


def _pairs(items: object, name: str, most_first: int, most_second: int) -> list[tuple[int, int]]:
    if not isinstance(items, list) or not all(isinstance(item, list) and len(item) == 2 for item in items):
        raise ValueError(f"the snapshot's {name} are not a list of pairs")
    return [(_integer(name, a, most_first), _integer(name, b, most_second)) for a, b in items]


def _integer(name: str, value: object, most: int) -> int:
    """ValueError, of a damaged header, for whatever is not an integer from 0 to `most`."""
    try:
        return check_integer(name, value, 0, most)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the snapshot's header: {error}") from error


_FIELDS: dict[str, Callable[[str, object, Identity], Any]] = {
    "version": lambda name, value, identity: value,  # seen first
    "num_shards": _own,
    "chunk_rows": _own,
    "owner_rank": _own,
    "half_life": _half_life,
    "tables": _tables,
    "rows": _rows,
    "counted_batches": _counted_batches,
    "chunks": _chunks,
}
"""All of them must be there, and no other."""
