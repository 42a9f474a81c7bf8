"""Speed of the loader without a model: raw files to batches that are deduplicated, looked up and planned."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from headrace.formats.file_reader import FileReader
from headrace.ingest.data_loader import DataLoader
from headrace.ingest.engine.stats import NodeStats

OpenReader = Callable[[], FileReader[Any]]


def measure(
    readers: Mapping[str, OpenReader],
    *,
    batch_size: int,
    window: int,
    threads: int,
    capacity: int | None = None,
    rounds: int = 3,
) -> dict[str, Any]:
    """Make all batches of each reader's files, turn by turn, `rounds` times; all hold the same rows.

    Each pass begins with an empty index, so that all ids are new at first, and takes every batch at once.

    ================ ====================================================================================
    `rows_per_s`     by format, medians over the rounds; from the first `next` to the end of the stream
    `stage_share`    share of each node in the busy time of all (summed over threads; with it the time that a thread
                     waits for a core), of the first format's median round; `raw_blocks` is reading, and inflating,
                     what `ReadRows` then decodes
    `stage_shares`   the same, by format
    `cores_used`     processor time over wall time, by format
    `peak_rss_bytes` of the process until the end
    `spread`         smallest and largest rows/s, by format
    ================ ====================================================================================
    """
    passes: dict[str, list[_Pass]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, open_reader in readers.items():
            passes[name].append(_Pass(open_reader(), batch_size, window, threads, capacity))
    rows = {p.rows for some in passes.values() for p in some}
    if len(rows) != 1:
        raise RuntimeError(f"the formats do not hold the same rows: {sorted(rows)}")
    rates = {name: [p.rows / p.wall_s for p in some] for name, some in passes.items()}
    shares = {name: _shares(sorted(some, key=lambda p: p.wall_s)[len(some) // 2]) for name, some in passes.items()}
    first = next(iter(passes))
    last = passes[first][-1]
    return {
        "rows": last.rows,
        "batch_size": batch_size,
        "window": window,
        "threads": threads,
        "rounds": rounds,
        "rows_per_s": {name: median(some) for name, some in rates.items()},
        "stage_share": shares[first],
        "stage_shares": shares,
        "cores_used": {name: median(p.cpu_s / p.wall_s for p in some) for name, some in passes.items()},
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "index_rows": last.index_rows,
        "unique_share": last.unique_share,
        "hit_rate": last.hit_rate,
        "spread": {name: [min(some), max(some)] for name, some in rates.items()},
    }


class _Pass:
    """One pass over a reader's files by a loader of its own."""

    def __init__(
        self, reader: FileReader[Any], batch_size: int, window: int, threads: int, capacity: int | None
    ) -> None:
        loader = DataLoader(
            reader, batch_size, schema=reader.schema, window=window, num_workers=threads, capacity=capacity
        )
        with loader:
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for _batch in loader:
                pass
            self.wall_s = time.perf_counter() - begin
            self.cpu_s = time.process_time() - begin_cpu
            stats = loader.stats()
            self.nodes: list[NodeStats] = loader.node_stats()
            loader.index.close()
        self.rows: int = stats["rows"]
        self.index_rows: int = stats["index_rows"]
        self.unique_share: float | None = stats["unique_share"]
        self.hit_rate: float | None = stats["hit_rate"]


def _shares(one: _Pass) -> dict[str, float]:
    busy: dict[str, float] = {"raw_blocks": one.nodes[0].wait_in_s}  # what the first node waits for is its own reading
    for node in one.nodes:
        busy[node.name] = busy.get(node.name, 0.0) + node.busy_s
    total = sum(busy.values())
    return {name: seconds / total for name, seconds in busy.items()}
