"""What goes into the index and what comes out of it, one batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.indexer.checks import check_integer

if TYPE_CHECKING:
    import pyarrow as pa

OFFSET_BITS = 14
PLACE_BITS = 46
TIER_SHIFT = 62
"""A location, from bit 0: offset in the chunk, chunk number up to `PLACE_BITS`, owner rank up to `TIER_SHIFT`, tier."""

CHUNK_ROWS = 1 << OFFSET_BITS
"""Rows of one chunk."""

_CHUNKS = 1 << (PLACE_BITS - OFFSET_BITS)
_RANKS = 1 << (TIER_SHIFT - PLACE_BITS)

ABSENT = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
"""Location of a key that a read-only lookup did not find committed (its tier bits are not those of any tier in use)."""

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
Ids: TypeAlias = "npt.NDArray[np.integer[Any]] | pa.Array | pa.ChunkedArray"


@dataclass(frozen=True)
class IndexTable:
    """A table as the index sees it: its stable 32-bit uid and the ordinal of its row layout (group)."""

    uid: int
    group: int


@dataclass(frozen=True)
class IdColumn:
    """Ids of one feature of one batch, in row order.

    `table` is the ordinal of the feature's table in the index. `missing` is bool [nnz] or None; the value under a
    missing entry is ignored. `values` [nnz] are integers:

    - a NumPy array of any integer type. uint32, uint64 and int64 are read where they are, read-only ones too, and
      copied only if they are strided. The key is the value as a 64-bit word: unsigned types are extended by zeros,
      signed ones by their sign. So -1 is one key, whether it came as int8, int32 or int64, and so is 5 as uint32 and
      as int64; but 2^32 - 1 (uint32) is another key than -1 (int32);
    - an Arrow array (plain or chunked, sliced or not) of any integer type, read where it is on the same terms; or of
      integers by a dictionary. Nulls, a dictionary's among them, are missing, beside what `missing` names.
    """

    table: int
    values: Ids
    missing: Bool | None = None


@dataclass(frozen=True)
class IndexedGroup:
    """One row layout's share of an indexed batch.

    Unique rows are ordered by table (in the order of the table's first column in the group), within a table by first
    appearance, column after column. All arrays are owned by the receiver.

    =============== ================= ================================================================
    `query_ids`     uint32 [nnz]      column-major, position of each id in the unique rows
    `unique_ids`    uint64 [U]        raw id; 0 where missing
    `missing`       bool [U]          the row of a missing value
    `locations`     uint64 [U]        where the row lives; ABSENT where a read-only lookup found no committed row
    `is_new`        bool [U]          inserted by this very batch
    `tables`        ints, T           ordinals of the group's tables that occur in this batch's columns
    `table_offsets` int64 [T + 1]     table j's unique rows are [table_offsets[j], table_offsets[j + 1])
    =============== ================= ================================================================
    """

    query_ids: U32
    unique_ids: U64
    missing: Bool
    locations: U64
    is_new: Bool
    tables: tuple[int, ...]
    table_offsets: I64

    @property
    def num_unique(self) -> int:
        return len(self.unique_ids)


@dataclass(frozen=True)
class IndexedIds:
    """An indexed batch: one :class:`IndexedGroup` a group, and the ticket by which its new rows are committed.

    `ticket` is None after a read-only lookup.
    """

    groups: tuple[IndexedGroup, ...]
    ticket: int | None


def pack_location(chunk: int, offset: int, *, rank: int = 0, tier: int = 0) -> int:
    """Location word: tier 2 bits | owner rank 16 | chunk 32 | offset 14. ValueError for what does not fit."""
    return (
        check_integer("tier", tier, 0, 3) << TIER_SHIFT
        | check_integer("rank", rank, 0, _RANKS - 1) << PLACE_BITS
        | check_integer("chunk", chunk, 0, _CHUNKS - 1) << OFFSET_BITS
        | check_integer("offset", offset, 0, CHUNK_ROWS - 1)
    )


def unpack_location(location: int) -> tuple[int, int, int, int]:
    """(tier, rank, chunk, offset) of a location word."""
    return (
        location >> TIER_SHIFT,
        (location >> PLACE_BITS) & (_RANKS - 1),
        (location >> OFFSET_BITS) & (_CHUNKS - 1),
        location & (CHUNK_ROWS - 1),
    )
