"""What goes into the index and what comes out of it, one batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OFFSET_BITS = 14
"""Low bits of a location: the offset in its chunk."""

PLACE_BITS = 46
"""Low bits of a location that say where its owner keeps the row: chunk and offset."""

TIER_SHIFT = 62
"""Position of a location's tier bits; the owner rank is between them and the place."""

CHUNK_ROWS = 1 << OFFSET_BITS
"""Rows of one chunk."""

ABSENT = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
"""Location of a key that a read-only lookup did not find (its tier bits are not those of any tier in use)."""

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class IndexTable:
    """A table as the index sees it: its stable 32-bit uid and the ordinal of its row layout (group)."""

    uid: int
    group: int


@dataclass(frozen=True)
class IdColumn:
    """Ids of one feature of one batch, in row order.

    `table` is the ordinal of the feature's table in the index. `values` is C-contiguous uint32 or uint64 [nnz] (int64
    ids are viewed as uint64). `missing` is bool [nnz] or None; the value under a missing entry is ignored.
    """

    table: int
    values: U32 | U64
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
    `locations`     uint64 [U]        where the row lives; ABSENT where a read-only lookup found nothing
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
    table_offsets: npt.NDArray[np.int64]

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
    """Location word: tier 2 bits | owner rank 16 | chunk 32 | offset 14."""
    return (tier << TIER_SHIFT) | (rank << PLACE_BITS) | (chunk << OFFSET_BITS) | offset


def unpack_location(location: int) -> tuple[int, int, int, int]:
    """(tier, rank, chunk, offset) of a location word."""
    return (
        location >> TIER_SHIFT,
        (location >> PLACE_BITS) & 0xFFFF,
        (location >> OFFSET_BITS) & 0xFFFF_FFFF,
        location & (CHUNK_ROWS - 1),
    )


def total_unique(groups: Sequence[IndexedGroup]) -> int:
    return sum(g.num_unique for g in groups)
