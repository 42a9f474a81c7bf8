"""Native kernels of the index. Their arguments are taken on trust: call them through `dit.DIT` and `dedup`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer.core import GroupArrays, RowArrays
from headrace.indexer.indexed import U32, U64, IndexTable
from headrace.indexer.packed_columns import Checked

class NativeDedup:
    """Unique rows of batches, without an index."""

    def __init__(self, tables: Sequence[IndexTable], num_groups: int, num_threads: int, multiplier: int) -> None: ...
    def deduplicate(self, columns: Checked) -> list[GroupArrays]:
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
        half_life: float,
    ) -> None: ...
    def index(self, columns: Checked) -> tuple[list[GroupArrays], int]:
        """Arrays of each group, owned by the caller, and the batch's ticket."""
    def lookup(self, columns: Checked) -> list[GroupArrays]:
        """As `index`, finding committed rows only and inserting nothing."""
    def remove(self, columns: Checked) -> list[GroupArrays]:
        """As `lookup`, and the rows found are gone. RuntimeError while tickets are open."""
    def commit(self, ticket: int, used: Sequence[U64]) -> None:
        """`used`: locations of the rows that one batch used, counted if there are any arrays."""
    def uses(self, locations: U64) -> npt.NDArray[np.float32]: ...
    def undo_after(self, ticket: int | None) -> None: ...
    def open_tickets(self) -> int: ...
    def committed_rows(self) -> int: ...
    def provisional_rows(self) -> int: ...
    def nbytes(self) -> int: ...
    def chunk_group(self, chunk: int) -> int | None:
        """None for a chunk that holds no row."""
    def stats(self) -> dict[str, Any]:
        """Raw counters, by name."""
    def open_cut(self) -> NativeCut: ...
    def bucket_rows(self, first: int, last: int) -> RowArrays: ...
    def restore_shard(
        self,
        shard: int,
        groups: list[int],
        extents: list[int],
        tables: U32,
        missing: npt.NDArray[np.uint8],
        ids: U64,
        locations: U64,
    ) -> None: ...
    def finish_restore(self, counted_batches: int, locations: U64, weights: npt.NDArray[np.float32]) -> None: ...
    def drop_restore(self) -> None: ...
    def close(self) -> None: ...

class NativeCut:
    """An `IndexCut`."""

    @property
    def counted_batches(self) -> int: ...
    def num_rows(self, shard: int) -> int: ...
    def chunks(self, shard: int) -> tuple[list[int], list[int]]: ...
    def shard_rows(self, shard: int) -> RowArrays: ...
    def close(self) -> None: ...

def mix64(table_uid: int, missing: bool, ids: U64) -> U64:
    """Native `hashing.mix64`: uint64 [n] hashes of uint64 [n] ids."""

def scattered(numbers: U64, multiplier: int) -> U64:
    """Native `hashing.scattered`: uint64 [n] for uint64 [n] ids."""

def permuted(numbers: U64, multiplier: int) -> U64:
    """Native `hashing.permuted`: uint64 [n] for uint64 [n] hashes."""

def probe_home(positions: U64, capacity: int) -> npt.NDArray[np.int64]:
    """Native `hashing.probe_home`: int64 [n] for uint64 [n] permuted hashes."""
