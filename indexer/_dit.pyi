"""Native kernels of the index. Their arguments are taken on trust: call them through `dit.DIT` and `dedup`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer.columns import CheckedColumn
from headrace.indexer.core import GroupArrays
from headrace.indexer.indexed import U32, U64, Bool, IndexTable

class NativeDedup:
    """Unique rows of batches, without an index."""

    def __init__(self, tables: Sequence[IndexTable], num_groups: int, num_threads: int, multiplier: int) -> None: ...
    def deduplicate(self, columns: Sequence[CheckedColumn]) -> list[GroupArrays]:
        """Arrays of each group, owned by the caller."""
    def close(self) -> None:
        """Joins the threads; later calls raise RuntimeError."""

class NativeIndex:
    """The index; an `IndexCore`."""

    def __init__(
        self,
        tables: Sequence[IndexTable],
        num_groups: int,
        num_shards: int,
        num_threads: int,
        owner_rank: int,
        multiplier: int,
    ) -> None: ...
    def index(self, columns: Sequence[CheckedColumn]) -> tuple[list[GroupArrays], int]:
        """Arrays of each group, owned by the caller, and the batch's ticket."""
    def lookup(self, columns: Sequence[CheckedColumn]) -> list[GroupArrays]:
        """As `index`, finding committed rows only and inserting nothing."""
    def commit(self, ticket: int) -> None: ...
    def undo_after(self, ticket: int | None) -> None: ...
    def open_tickets(self) -> int: ...
    def committed_rows(self) -> int: ...
    def provisional_rows(self) -> int: ...
    def nbytes(self) -> int: ...
    def chunk_group(self, chunk: int) -> int | None:
        """None for a chunk that holds no row."""
    def stats(self) -> dict[str, Any]:
        """Raw counters, by name."""
    def snapshot(self) -> tuple[U32, Bool, U64, U64, npt.NDArray[np.int64], U32, U32]:
        """The fields of `core.CutArrays`."""
    def restore(
        self,
        tables: U32,
        missing: npt.NDArray[np.uint8],
        ids: U64,
        locations: U64,
        chunk_counts: npt.NDArray[np.int64],
        chunk_groups: U32,
        chunk_rows: U32,
    ) -> None:
        """uint32, uint8, uint64, uint64 [rows]; the chunks as in `core.CutArrays`."""
    def close(self) -> None: ...

def mix64(table_uid: int, missing: bool, ids: U64) -> U64:
    """Native `hashing.mix64`: uint64 [n] hashes of uint64 [n] ids."""

def scattered(numbers: U64, multiplier: int) -> U64:
    """Native `hashing.scattered`: uint64 [n] for uint64 [n] ids."""

def permuted(numbers: U64, multiplier: int) -> U64:
    """Native `hashing.permuted`: uint64 [n] for uint64 [n] hashes."""

def probe_home(positions: U64, capacity: int) -> npt.NDArray[np.int64]:
    """Native `hashing.probe_home`: int64 [n] for uint64 [n] permuted hashes."""
