"""What a kernel of the index offers to its checked front: the native one and its pure-Python twin both do.

Arguments are checked by the front. `GroupArrays` are the fields of :class:`~headrace.indexer.indexed.IndexedGroup`,
in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.indexer.columns import CheckedColumn
from headrace.indexer.indexed import U32, U64, Bool

GroupArrays = tuple[U32, U64, Bool, U64, Bool, tuple[int, ...], npt.NDArray[np.int64]]


class CutArrays(NamedTuple):
    """Committed rows in the order of their locations, and the chunks that hold them, shard by shard.

    uint32, bool, uint64, uint64 [rows]; int64 [num_shards] chunks of each shard; uint32, uint32 [chunks] the group and
    the committed rows of each, in the order in which the shard took them: the k-th chunk of shard s is number
    k * num_shards + s.
    """

    table_uids: U32
    missing: Bool
    ids: U64
    locations: U64
    chunk_counts: npt.NDArray[np.int64]
    chunk_groups: U32
    chunk_rows: U32


class IndexCore(Protocol):
    def index(self, columns: Sequence[CheckedColumn]) -> tuple[list[GroupArrays], int]: ...
    def lookup(self, columns: Sequence[CheckedColumn]) -> list[GroupArrays]: ...
    def commit(self, ticket: int) -> None: ...
    def undo_after(self, ticket: int | None) -> None: ...
    def open_tickets(self) -> int: ...
    def committed_rows(self) -> int: ...
    def provisional_rows(self) -> int: ...
    def nbytes(self) -> int: ...
    def chunk_group(self, chunk: int) -> int | None: ...
    def stats(self) -> dict[str, Any]: ...
    def snapshot(
        self,
    ) -> tuple[U32, Bool, U64, U64, npt.NDArray[np.int64], U32, U32]: ...
    def restore(
        self,
        tables: U32,
        missing: npt.NDArray[np.uint8],
        ids: U64,
        locations: U64,
        chunk_counts: npt.NDArray[np.int64],
        chunk_groups: U32,
        chunk_rows: U32,
    ) -> None: ...
    def close(self) -> None: ...
