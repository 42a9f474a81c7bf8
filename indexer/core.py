"""What a kernel of the index offers to its checked front: the native one and its pure-Python twin both do.

Arguments are checked by the front. `GroupArrays` are the fields of :class:`~headrace.indexer.indexed.IndexedGroup`,
in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.indexer.indexed import U32, U64, Bool
from headrace.indexer.packed_columns import Checked

GroupArrays = tuple[U32, U64, Bool, U64, Bool, tuple[int, ...], npt.NDArray[np.int64]]


class RowArrays(NamedTuple):
    """Committed rows: table ordinals uint32, missing bool, ids, locations, hashes uint64 [rows].

    `weights` float32 [rows]: uses as they are stored (see the native UseCounts), None where nothing was counted.
    """

    tables: U32
    missing: Bool
    ids: U64
    locations: U64
    hashes: U64
    weights: npt.NDArray[np.float32] | None


class IndexCut(Protocol):
    """What was committed at one moment, until `close`; removals wait for it, batches and commits do not."""

    @property
    def counted_batches(self) -> int: ...
    def num_rows(self, shard: int) -> int: ...
    def chunks(self, shard: int) -> tuple[list[int], list[int]]:
        """Group and extent of each of the shard's chunks, in the order in which it took them."""

    def shard_rows(self, shard: int) -> RowArrays:
        """In the order of their locations."""

    def close(self) -> None: ...


class IndexCore(Protocol):
    def index(self, columns: Checked) -> tuple[list[GroupArrays], int]: ...
    def lookup(self, columns: Checked) -> list[GroupArrays]: ...
    def remove(self, columns: Checked) -> list[GroupArrays]: ...
    def commit(self, ticket: int, used: Sequence[U64]) -> None: ...
    def uses(self, locations: U64) -> npt.NDArray[np.float32]: ...
    def undo_after(self, ticket: int | None) -> None: ...
    def open_tickets(self) -> int: ...
    def committed_rows(self) -> int: ...
    def provisional_rows(self) -> int: ...
    def nbytes(self) -> int: ...
    def chunk_group(self, chunk: int) -> int | None: ...
    def stats(self) -> dict[str, Any]: ...
    def open_cut(self) -> IndexCut: ...
    def bucket_rows(self, first: int, last: int) -> RowArrays:
        """Rows whose route buckets are in [first, last), in the order of (hash, table, missing)."""

    def restore_shard(
        self,
        shard: int,
        groups: list[int],
        extents: list[int],
        tables: U32,
        missing: npt.NDArray[np.uint8],
        ids: U64,
        locations: U64,
    ) -> None:
        """Shards in order; `finish_restore` puts them in place, `drop_restore` forgets them."""

    def finish_restore(self, counted_batches: int, locations: U64, weights: npt.NDArray[np.float32]) -> None: ...
    def drop_restore(self) -> None: ...
    def close(self) -> None: ...
