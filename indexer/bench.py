"""Throughput of the index, beside the physical limit, the published design and what users have at hand.

Everything is measured in the same run, on the same batches, turn by turn: machines are noisy, and figures of
different runs do not compare. A *sample* is one row of a batch, 26 ids for Criteo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

from headrace.indexer import _bench
from headrace.indexer._dit import mix64
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import U32, U64, IdColumn, IndexTable

Batch = Sequence[IdColumn]

PREFILL_IDS = 1 << 16
"""Ids of one call while the table is filled: as many as a batch has unique rows, so that scratch stays its size."""

NUM_SHARDS = 64


@dataclass(frozen=True)
class Spread:
    """Samples a second over the rounds of a run."""

    median: float
    minimum: float
    maximum: float

    @staticmethod
    def of(samples: int, seconds: Sequence[float]) -> Spread:
        rates = [samples / s for s in seconds]
        return Spread(median(rates), min(rates), max(rates))


def filled_index(
    tables: Sequence[IndexTable], residents: Sequence[U32], *, num_threads: int
) -> tuple[DIT, dict[str, float]]:
    """An index that holds `residents[t]` of each table, and what it cost: rows/s, bytes a row, longest call.

    Bytes a row are the mean and the largest over sizes from 1 M rows on, or those of a smaller table when it is full.
    """
    index = DIT(tables, num_threads=num_threads)
    rows = 0
    most = seconds = 0.0
    bytes_per_row = []
    for table, ids in enumerate(residents):
        for start in range(0, len(ids), PREFILL_IDS):
            column = IdColumn(table, ids[start : start + PREFILL_IDS])
            begin = time.perf_counter()
            index.commit(_ticket(index.index([column]).ticket))
            seconds += time.perf_counter() - begin
            rows += len(column.values)
            if rows >= 1_000_000:
                per_row = index.nbytes / len(index)
                bytes_per_row.append(per_row)
                most = max(most, per_row)
    stats = index.stats()
    return index, {
        "insert_rows_per_s": len(index) / seconds if seconds else 0.0,
        "bytes_per_row": float(np.mean(bytes_per_row)) if bytes_per_row else stats.nbytes / max(len(index), 1),
        "bytes_per_row_max": float(most) if bytes_per_row else stats.nbytes / max(len(index), 1),
        "longest_call_ms": stats.longest_call_ms,
    }


def measure(
    tables: Sequence[IndexTable],
    residents: Sequence[U32],
    batches: Sequence[Batch],
    *,
    threads: Sequence[int],
    rounds: int = 5,
    peers: bool = True,
) -> dict[str, Any]:
    """Measure all, `rounds` times in turn; keys as `headrace bench index` writes them.

    `residents[t]` uint32 are the ids that table t holds before; `batches` are indexed and committed one by one.
    """
    samples = sum(len(batch[0].values) for batch in batches)
    ids = sum(len(c.values) for batch in batches for c in batch)
    indexes, filled = {}, {}
    for number in threads:
        indexes[number], filled[number] = filled_index(tables, residents, num_threads=number)
    unique = [_unique_hashes(indexes[threads[0]], tables, batch) for batch in batches]
    contenders: dict[str, Callable[[], None]] = {f"index_{n}": _indexer(indexes[n], batches) for n in threads}
    contenders["limit"] = _limit(batches, [len(u) for u in unique], indexes[threads[0]].stats().capacity)
    if peers:
        contenders |= _locked_maps(tables, residents, batches) | _peers(batches)
    for run in contenders.values():
        run()  # warm: memory is mapped, rows that are new in the batches are there
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    rates = {name: Spread.of(samples, s) for name, s in seconds.items()}
    by_threads = {str(n): rates[f"index_{n}"] for n in threads}
    first = filled[threads[0]]
    report: dict[str, Any] = {
        "rows": len(indexes[threads[0]]),
        "samples": samples,
        "ids_per_sample": ids / samples,
        "unique_share": sum(map(len, unique)) / ids,
        "samples_per_s": {n: r.median for n, r in by_threads.items()},
        "ids_per_s": {n: r.median * ids / samples for n, r in by_threads.items()},
        "limit_samples_per_s": rates["limit"].median,
        "ratio_to_limit": median(a / b for a, b in zip(seconds["limit"], seconds[f"index_{threads[0]}"], strict=True)),
        "baseline_sharded_map": rates["locked_once_a_shard"].median if peers else None,
        "baseline_lock_per_id": rates["locked_once_an_id"].median if peers else None,
        "peers": {name: rates[name].median for name in _PEERS if name in rates},
        **first,
        "spread": {name: [r.minimum, r.maximum] for name, r in rates.items()},
        "rounds": rounds,
    }
    for index in indexes.values():
        index.close()
    return report


def _ticket(ticket: int | None) -> int:
    if ticket is None:
        raise RuntimeError("index() gave no ticket")
    return ticket


def _indexer(index: DIT, batches: Sequence[Batch]) -> Callable[[], None]:
    def run() -> None:
        for batch in batches:
            index.commit(_ticket(index.index(batch).ticket))

    return run


def _unique_hashes(index: DIT, tables: Sequence[IndexTable], batch: Batch) -> U64:
    parts = []
    for group in index.lookup(batch).groups:
        for table, start, end in zip(group.tables, group.table_offsets, group.table_offsets[1:], strict=False):
            parts.append(mix64(tables[table].uid, False, group.unique_ids[start:end]))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _limit(batches: Sequence[Batch], unique: Sequence[int], capacity: int) -> Callable[[], None]:
    """The least that an index must do: read each id and write each query id once, and for each unique id read one entry
    of 16 bytes, prefetched, at a random place of a table of the same size. (An index that meets popular ids again finds
    some of them in the cache.)"""
    reads = _bench.RandomReads(max(capacity, 1))
    rng = np.random.default_rng(0)
    places = [rng.integers(0, 1 << 64, count, np.uint64) for count in unique]
    flat = [np.concatenate([c.values.astype(np.uint32) for c in batch]) for batch in batches]
    out = np.empty(max(map(len, flat)), np.uint32)

    def run() -> None:
        for ids, at in zip(flat, places, strict=True):
            _bench.stream_pass(ids, out)
            reads.read(at)

    return run


def _hashed(tables: Sequence[IndexTable], column: IdColumn) -> U64:
    return mix64(tables[column.table].uid, False, column.values.astype(np.uint64))


def _locked_maps(
    tables: Sequence[IndexTable], residents: Sequence[U32], batches: Sequence[Batch]
) -> dict[str, Callable[[], None]]:
    """The published design, its keys hashed beforehand (in its favour)."""
    maps = _bench.LockedMaps(NUM_SHARDS)
    for table, ids in enumerate(residents):
        for start in range(0, len(ids), PREFILL_IDS):
            maps.index_batch(_hashed(tables, IdColumn(table, ids[start : start + PREFILL_IDS])))
    keys = [np.concatenate([_hashed(tables, c) for c in batch]) for batch in batches]

    def once_a_shard() -> None:
        for batch in keys:
            maps.index_batch(batch)

    def once_an_id() -> None:
        for batch in keys:
            maps.index_each(batch)

    return {"locked_once_a_shard": once_a_shard, "locked_once_an_id": once_an_id}


_PEERS = ("numpy_unique_dict", "pandas_factorize", "cykhash")


def _peers(batches: Sequence[Batch]) -> dict[str, Callable[[], None]]:
    """What users have at hand, one table a column; they hold the ids of the batches only, which is in their favour."""
    found = {"numpy_unique_dict": _numpy_unique_dict(batches)}
    if find_spec("pandas"):
        found["pandas_factorize"] = _pandas_factorize(batches)
    if find_spec("cykhash"):
        found["cykhash"] = _cykhash(batches)
    return found


def _numpy_unique_dict(batches: Sequence[Batch]) -> Callable[[], None]:
    rows: list[dict[int, int]] = [{} for _ in batches[0]]

    def run() -> None:
        for batch in batches:
            for column, row_of in zip(batch, rows, strict=True):
                unique, _ = np.unique(column.values, return_inverse=True)
                for value in unique.tolist():
                    row_of.setdefault(value, len(row_of))

    return run


def _pandas_factorize(batches: Sequence[Batch]) -> Callable[[], None]:
    """Dedup alone: pandas has no index that grows."""
    import pandas

    def run() -> None:
        for batch in batches:
            for column in batch:
                pandas.factorize(column.values)

    return run


def _cykhash(batches: Sequence[Batch]) -> Callable[[], None]:
    """Dedup alone, by cykhash's set."""
    import cykhash

    def run() -> None:
        for batch in batches:
            for column in batch:
                cykhash.unique_int64(column.values.astype(np.int64))

    return run
