"""The distributed index table (DIT) of one owner: key -> location, collision-free, grown on first sight."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.indexer import snapshot as snapshots
from headrace.indexer import snapshot_file
from headrace.indexer._dit import NativeIndex
from headrace.indexer.checks import check_integer, check_locations, check_number
from headrace.indexer.columns import MAX_THREADS, check_tables, count_groups
from headrace.indexer.core import IndexCore
from headrace.indexer.dit_stats import DitStats
from headrace.indexer.hashing import MAX_SHARDS, ROUTE_BUCKETS, private_multiplier, route_bucket
from headrace.indexer.indexed import U64, IdColumn, IndexedGroup, IndexedIds, IndexRows, IndexTable
from headrace.indexer.packed_columns import PackedColumns, checked
from headrace.indexer.writer import WriterClaim

_SERIALS = itertools.count(1)


class DIT:
    """Index of the keys (table, missing flag, id) that one rank owns. Every 64-bit id is legal.

    Life of a row: unknown -> provisional (`index` met it first; its batch's ticket is open) -> committed (`commit`), or
    unknown again (`undo_after`). Invariants, with S shards:

    - a new row's place is a function of the batches before it alone, whatever `num_threads`: shard s hands out the rows
      of its k-th chunk, number k * S + s, in order, to the keys whose hash picks s;
    - after ``undo_after(t)`` the index gives the same places as if the batches after t had never come;
    - ``len(dit)``, `lookup`, `snapshot` and `restore` know committed rows only.

    Threads: any method from any thread. Batches are taken one after the other; `lookup`, `commit`, `snapshot` and
    `stats` go on beside a running `index`, and wait for one lane's share of it at most (one thread: for its probes,
    half of it). Only `remove` and `close` wait for a running `snapshot`. Not usable in a forked child
    (RuntimeError). After `close`, RuntimeError.

    Uses: `commit` counts the batch's rows, so that what was read ahead counts only once it is delivered; `lookup` never
    counts. With `half_life` a use weighs half after that many counted batches.

    `num_shards` is a power of two up to 64, and belongs to the data: a snapshot restores into the same number only.
    `num_threads` counts the calling thread; no more of them work at once than there are cores. `owner_rank` stands in
    every location. `multiplier`, odd and of 64 bits, spreads keys over memory; it is drawn at random, so that nobody
    can choose ids that meet, and no result depends on it: give one only where instruction counts must repeat.

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
        half_life: float | None = None,
        multiplier: int | None = None,
    ) -> None:
        self._tables = check_tables(tables)
        self._num_shards = check_integer("num_shards", num_shards, 1, MAX_SHARDS)
        if self._num_shards & (self._num_shards - 1):
            raise ValueError(f"num_shards is {num_shards}; it must be a power of two")
        self._num_threads = check_integer("num_threads", num_threads, 1, MAX_THREADS)
        self._owner_rank = check_integer("owner_rank", owner_rank, 0, (1 << 16) - 1)
        self._multiplier = private_multiplier(multiplier)
        self._half_life = None if half_life is None else check_number("half_life", half_life, 1, 1e9)
        self._pid = os.getpid()
        self._core = self._make_core()
        self._closed = False
        self._serial = next(_SERIALS)
        self._writer = WriterClaim()
        self._restoring = threading.Lock()

    def _make_core(self) -> IndexCore:
        return NativeIndex(
            self._tables,
            count_groups(self._tables),
            self._num_shards,
            self._num_threads,
            self._owner_rank,
            self._multiplier,
            self._half_life or 0.0,
        )

    @property
    def serial(self) -> int:
        """Number of this object among the indexes made in this process, from 1; no part of its state."""
        return self._serial

    @property
    def tables(self) -> tuple[IndexTable, ...]:
        return self._tables

    @property
    def num_shards(self) -> int:
        return self._num_shards

    @property
    def owner_rank(self) -> int:
        return self._owner_rank

    def index(self, columns: Sequence[IdColumn] | PackedColumns) -> IndexedIds:
        """Deduplicate a batch and give every unique key a location; keys not known yet get the next places.

        The new rows are provisional until the returned ticket is committed. TypeError, ValueError: see
        :func:`~headrace.indexer.columns.check_columns`. MemoryError, or OverflowError when all chunk numbers are in
        use: then the batch has left no trace.
        """
        groups, ticket = self._open().index(checked(columns, self._tables))
        return IndexedIds(tuple(IndexedGroup(*arrays) for arrays in groups), ticket)

    def lookup(self, columns: Sequence[IdColumn] | PackedColumns) -> IndexedIds:
        """As `index`, but read-only: nothing is inserted or counted, `ticket` is None.

        Keys without a committed row get ABSENT, provisional ones among them: after an undo their place may be another
        key's. Beside a running `commit` each shard is seen before or after it.
        """
        groups = self._open().lookup(checked(columns, self._tables))
        return IndexedIds(tuple(IndexedGroup(*arrays) for arrays in groups), None)

    def remove(self, columns: Sequence[IdColumn] | PackedColumns) -> IndexedIds:
        """Take rows out of the index. As `lookup`: locations are those that the rows had, ABSENT where there was none.

        Their places go to the next new rows of the same group and shard, lowest place first; what was stored there (a
        vector, a count of uses) is the caller's to forget, but for the count. RuntimeError while tickets are open:
        their batches may use the rows. On MemoryError some of the rows are gone. Waits for running snapshots, and for
        those that begin meanwhile: threads that take them without a gap between them hold it off for as long.
        """
        groups = self._open().remove(checked(columns, self._tables))
        return IndexedIds(tuple(IndexedGroup(*arrays) for arrays in groups), None)

    def commit(self, ticket: int, used: IndexedIds | None = None) -> None:
        """Make the rows of `ticket` and of all earlier tickets permanent. ValueError unless `ticket` is open.

        `used`: a batch that has been delivered, of this ticket or of any other; each of its rows counts as used once
        more. What is counted for rows of later tickets is theirs when they are committed, and gone when they are
        undone. ValueError for locations in chunks that this index has not, or of another owner: then nothing has
        changed, and nothing is counted; the same call again counts once.

        Commit in the order of the tickets: a ticket that a later one took along is refused, and its uses cannot be
        counted any more. Threads that index side by side hand their batches to one that commits.
        """
        if used is not None and not isinstance(used, IndexedIds):
            raise TypeError(f"used is of type {type(used).__name__}; give the IndexedIds that index() returned")
        self.commit_used(ticket, [] if used is None else [group.locations for group in used.groups])

    def commit_used(self, ticket: int, locations: Sequence[U64]) -> None:
        """`commit` for who has the locations alone: a uint64 array a group, no row twice; none: nothing is counted."""
        if isinstance(locations, np.ndarray) or not isinstance(locations, Sequence):
            raise TypeError(f"locations are a {type(locations).__name__}; give a list of uint64 arrays, one a group")
        arrays = [check_locations(f"locations of group {group}", array) for group, array in enumerate(locations)]
        self._open().commit(check_integer("ticket", ticket, 0, (1 << 63) - 1), arrays)

    def uses(self, locations: U64) -> npt.NDArray[np.float32]:
        """In how many of the delivered batches the rows at these uint64 locations were used, float32 [n]; decayed by
        `half_life`. 0 where a row was never used and for ABSENT; exact up to 2^24. ValueError for locations in chunks
        that this index has not, or of another owner.

        Counts are kept by place. A row's begins at 0 with the first commit after it was indexed: whatever was counted
        there before, for a location that was of no row, or of another one, is not its own. So a location of no row, in
        a chunk that this index has, is not refused (one of another index may be that of a row here), and what is
        counted for it is nobody's."""
        return self._open().uses(check_locations("locations", locations))

    def rows_of_buckets(self, first: int = 0, last: int = ROUTE_BUCKETS) -> IndexRows:
        """The committed rows whose route buckets (``hash >> 48``) lie in [first, last), in the order of the buckets.

        Within a bucket by hash, then table. To go through a large index, ask for a few buckets at a time. Rows that are
        committed or removed meanwhile may be there or not.
        """
        start = check_integer("first", first, 0, ROUTE_BUCKETS)
        rows = self._open().bucket_rows(start, check_integer("last", last, start, ROUTE_BUCKETS))
        return IndexRows(rows.tables, rows.missing, rows.ids, rows.locations, route_bucket(rows.hashes))

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
            free_places=raw["free_places"],
            capacity=raw["capacity"],
            nbytes=raw["nbytes"],
            counts_nbytes=raw["counts_nbytes"],
            scratch_nbytes=raw["scratch_nbytes"],
            mean_probe_length=raw["probe_lines"] / keys if keys else 0.0,
            max_probe_length=raw["longest_probe"],
            growths=raw["growths"],
            longest_call_ms=raw["longest_call_ms"],
            shard_imbalance=raw["fullest_shard"] * self._num_shards / rows if rows else 0.0,
            lock_wait_ms=raw["lock_wait_ms"],
        )

    def snapshot(self) -> pa.Table:
        """The committed rows, as of the last `commit`, by shard and location; see :mod:`headrace.indexer.snapshot`."""
        with closing(self._open().open_cut()) as cut:
            return snapshots.pack(cut, self._identity())

    def restore(self, table: pa.Table) -> None:
        """Take over the rows of a snapshot: same locations, and the same places for all that comes later.

        The index must be empty, and no other restore be going on (RuntimeError). ValueError for a snapshot that is
        damaged, of another version, number of shards, owner, half-life or set of tables (tables may have been added
        since), MemoryError for one that needs more memory than there is; then nothing has changed.
        """
        with self._sole_restore() as core:
            snapshots.restore_table(table, self._identity(), core)

    def write_snapshot(self, path: str | os.PathLike[str]) -> None:
        """`snapshot` into an Arrow IPC file that appears whole or not at all, with one shard in memory at a time.

        `index`, `lookup`, `commit` and `undo_after` go on meanwhile; the file holds what was committed when it began.
        """
        file = _path_of_file(path)
        with closing(self._open().open_cut()) as cut:
            snapshot_file.write(cut, self._identity(), file)

    def read_snapshot(self, path: str | os.PathLike[str]) -> None:
        """`restore` from a file of `write_snapshot`; errors name the file."""
        with self._sole_restore() as core:
            snapshot_file.restore_file(_path_of_file(path), self._identity(), core)

    @contextmanager
    def _sole_restore(self) -> Iterator[IndexCore]:
        """Refuses a second one instead of waiting: after the first the index would not be empty."""
        core = self._open()
        if not self._restoring.acquire(blocking=False):
            raise RuntimeError("another restore into this index is going on: restore once, or into another index")
        try:
            yield core
        finally:
            self._restoring.release()

    def _identity(self) -> snapshots.Identity:
        return snapshots.Identity(self._tables, self._num_shards, self._owner_rank, self._half_life)

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

    def __repr__(self) -> str:
        parts = [f"{len(self._tables)} tables"]
        if os.getpid() != self._pid:
            parts.append("of the parent process")
        elif self._closed:
            parts.append("closed")
        else:
            with suppress(RuntimeError):  # closed meanwhile
                parts.append(f"{self._core.committed_rows():,} rows")
        return f"DIT({', '.join(parts)}, num_shards={self._num_shards}, num_threads={self._num_threads})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an index cannot be pickled or copied, since it has threads and locks: write_snapshot() here and "
            "read_snapshot() into an index there carry its rows; threads of one process share it as it is"
        )

    def _open(self) -> IndexCore:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this index was made in the parent process; its threads and locks do not survive a fork: use threads, "
                "or make an index in the child"
            )
        return self._core


def _path_of_file(path: str | os.PathLike[str]) -> Path:
    if os.fspath(path) == "":
        raise ValueError("the path of the snapshot is empty; name a file")
    return Path(path)
