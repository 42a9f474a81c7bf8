"""The distributed index table (DIT) of one owner: key -> location, collision-free, grown on first sight."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from headrace.indexer import snapshot as snapshots
from headrace.indexer._dit import NativeIndex
from headrace.indexer.checks import check_integer
from headrace.indexer.columns import MAX_THREADS, check_columns, check_tables, count_groups
from headrace.indexer.core import CutArrays, IndexCore
from headrace.indexer.dit_stats import DitStats
from headrace.indexer.hashing import MAX_SHARDS, private_multiplier
from headrace.indexer.indexed import IdColumn, IndexedGroup, IndexedIds, IndexTable
from headrace.indexer.writer import WriterClaim


class DIT:
    """Index of the keys (table, missing flag, id) that one rank owns. Every 64-bit id is legal.

    Life of a row: unknown -> provisional (`index` met it first; its batch's ticket is open) -> committed (`commit`), or
    unknown again (`undo_after`). Invariants, with S shards:

    - a new row's place is a function of the batches before it alone, whatever `num_threads`: shard s hands out the rows
      of its k-th chunk, number k * S + s, in order, to the keys whose hash picks s;
    - after ``undo_after(t)`` the index gives the same places as if the batches after t had never come;
    - ``len(dit)``, `lookup`, `snapshot` and `restore` know committed rows only.

    Threads: any method from any thread. Batches are taken one after the other; `lookup`, `commit`, `snapshot` and
    `stats` go on beside a running `index`, and wait for one shard's share of it at most. `commit` and `undo_after` wait
    for a running `snapshot`. Not usable in a forked child (RuntimeError). After `close`, RuntimeError.

    `num_shards` is a power of two up to 64, and belongs to the data: a snapshot restores into the same number only.
    `num_threads` counts the calling thread. `owner_rank` stands in every location. `multiplier`, odd and of 64 bits,
    spreads keys over memory; it is drawn at random, so that nobody can choose ids that meet, and no result depends on
    it: give one only where instruction counts must repeat.

    `claim_writer` and its kin are for loaders that share an index: who reads ahead claims first. `index`, `commit` and
    `undo_after` do not ask for it.
    """

    def __init__(
        self,
        tables: Sequence[IndexTable],
        *,
        num_shards: int = 64,
        num_threads: int = 1,
        owner_rank: int = 0,
        multiplier: int | None = None,
    ) -> None:
        self._tables = check_tables(tables)
        self._num_shards = check_integer("num_shards", num_shards, 1, MAX_SHARDS)
        if self._num_shards & (self._num_shards - 1):
            raise ValueError(f"num_shards is {num_shards}; it must be a power of two")
        self._num_threads = check_integer("num_threads", num_threads, 1, MAX_THREADS)
        self._owner_rank = check_integer("owner_rank", owner_rank, 0, (1 << 16) - 1)
        self._multiplier = private_multiplier(multiplier)
        self._pid = os.getpid()
        self._core = self._make_core()
        self._closed = False
        self._writer = WriterClaim()

    def _make_core(self) -> IndexCore:
        return NativeIndex(
            self._tables,
            count_groups(self._tables),
            self._num_shards,
            self._num_threads,
            self._owner_rank,
            self._multiplier,
        )

    @property
    def tables(self) -> tuple[IndexTable, ...]:
        return self._tables

    @property
    def num_shards(self) -> int:
        return self._num_shards

    @property
    def owner_rank(self) -> int:
        return self._owner_rank

    def index(self, columns: Sequence[IdColumn]) -> IndexedIds:
        """Deduplicate a batch and give every unique key a location; keys not known yet get the next places.

        The new rows are provisional until the returned ticket is committed. TypeError, ValueError: see
        :func:`~headrace.indexer.columns.check_columns`. MemoryError, or OverflowError when all chunk numbers are in
        use: then the batch has left no trace.
        """
        groups, ticket = self._open().index(check_columns(columns, self._tables))
        return IndexedIds(tuple(IndexedGroup(*arrays) for arrays in groups), ticket)

    def lookup(self, columns: Sequence[IdColumn]) -> IndexedIds:
        """As `index`, but read-only: nothing is inserted or counted, `ticket` is None.

        Keys without a committed row get ABSENT, provisional ones among them: after an undo their place may be another
        key's. Beside a running `commit` each shard is seen before or after it.
        """
        groups = self._open().lookup(check_columns(columns, self._tables))
        return IndexedIds(tuple(IndexedGroup(*arrays) for arrays in groups), None)

    def commit(self, ticket: int) -> None:
        """Make the rows of `ticket` and of all earlier tickets permanent. ValueError unless `ticket` is open."""
        self._open().commit(check_integer("ticket", ticket, 0, (1 << 63) - 1))

    def undo_after(self, ticket: int | None) -> None:
        """Forget the batches after `ticket`, newest first; None: all that are uncommitted.

        ValueError unless `ticket` is open or the one committed last. Tickets are not given out again.
        """
        self._open().undo_after(None if ticket is None else check_integer("ticket", ticket, 0, (1 << 63) - 1))

    def claim_writer(self, owner: object) -> None:
        """Make `owner`, held weakly, the one writer; it takes over from one that is gone or has no open tickets.

        RuntimeError while another writer is alive and tickets are open.
        """
        self._writer.claim(owner, self._open().open_tickets)

    def release_writer(self, owner: object) -> None:
        """`owner` writes no longer. Nothing if it is not the writer; allowed after `close`."""
        self._writer.release(owner)

    def writer_is(self, owner: object) -> bool:
        """Whether `owner` claimed last and has not released."""
        return self._writer.holds(owner)

    def __len__(self) -> int:
        """Committed rows."""
        return self._open().committed_rows()

    @property
    def num_provisional(self) -> int:
        """Rows of open tickets."""
        return self._open().provisional_rows()

    @property
    def nbytes(self) -> int:
        """Bytes of entries, journals and chunk lists (batch scratch aside, see `stats`)."""
        return self._open().nbytes()

    def chunk_group(self, chunk: int) -> int:
        """Group of a chunk in use; provisional rows count. ValueError for a chunk that holds no row."""
        group = self._open().chunk_group(check_integer("chunk", chunk, 0, (1 << 32) - 1))
        if group is None:
            raise ValueError(f"chunk {chunk} holds no row of this index")
        return group

    def stats(self) -> DitStats:
        raw = self._open().stats()
        rows, keys = raw["rows"] + raw["provisional"], raw["keys"]
        return DitStats(
            rows=raw["rows"],
            provisional=raw["provisional"],
            capacity=raw["capacity"],
            nbytes=raw["nbytes"],
            scratch_nbytes=raw["scratch_nbytes"],
            mean_probe_length=raw["probe_lines"] / keys if keys else 0.0,
            max_probe_length=raw["longest_probe"],
            growths=raw["growths"],
            longest_call_ms=raw["longest_call_ms"],
            shard_imbalance=raw["fullest_shard"] * self._num_shards / rows if rows else 0.0,
            lock_wait_ms=raw["lock_wait_ms"],
        )

    def snapshot(self) -> pa.Table:
        """The committed rows, as of the last `commit`, sorted by location; see :mod:`headrace.indexer.snapshot`."""
        cut = CutArrays(*self._open().snapshot())
        return snapshots.pack(cut, snapshots.Identity(self._tables, self._num_shards, self._owner_rank))

    def restore(self, table: pa.Table) -> None:
        """Take over the rows of a snapshot: same locations, and the same places for all that comes later.

        The index must be empty (RuntimeError). ValueError for a snapshot that is damaged, of another version, number of
        shards, owner or set of tables (tables may have been added since); then nothing has changed.
        """
        core = self._open()
        identity = snapshots.Identity(self._tables, self._num_shards, self._owner_rank)
        ordinals, cut = snapshots.unpack(table, identity)
        core.restore(ordinals, cut.missing.view("u1"), *cut[2:])

    def write_snapshot(self, path: str | os.PathLike[str]) -> None:
        """`snapshot` into an Arrow IPC file that appears whole or not at all."""
        snapshots.write(self.snapshot(), Path(path))

    def read_snapshot(self, path: str | os.PathLike[str]) -> None:
        """`restore` from a file of `write_snapshot`; errors name the file."""
        table = snapshots.read(Path(path))
        try:
            self.restore(table)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error

    def close(self) -> None:
        """Wait for the calls in flight, join the threads, free the rows. Again: nothing."""
        if os.getpid() == self._pid:
            self._closed = True
            self._core.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> DIT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> IndexCore:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this index was made in the parent process; its threads and locks do not survive a fork: use threads, "
                "or make an index in the child"
            )
        return self._core
