"""`headrace bench`: throughput of the parts, each with the physical limit and the peers in the same run."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.formats.generate.features import FeatureStream
from headrace.formats.generate.presets import load_preset
from headrace.formats.schema import table_uid
from headrace.indexer.bench import Batch, measure
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import U32, U64, IdColumn, IndexTable
from headrace.ingest.plan import bench as plan_bench

BLOCK_ROWS = 1 << 16


def bench_index(
    preset: str,
    *,
    rows: int,
    batch_size: int,
    threads: tuple[int, ...],
    samples: int,
    rounds: int,
    peers: bool,
    seed: int,
) -> dict[str, Any]:
    """Index a generated stream of `preset` into a table that holds its `rows` most popular ids."""
    stream = FeatureStream(load_preset(preset, skew="default", max_cardinality=None), seed, BLOCK_ROWS, 0.0, 1 << 40)
    names = list(stream.preset.sparse)
    tables = [IndexTable(uid=table_uid(name), group=0) for name in names]
    report = measure(
        tables,
        popular_ids(stream, rows),
        stream_batches(stream, samples, batch_size),
        threads=threads,
        rounds=rounds,
        peers=peers,
    )
    return {"preset": preset, "batch_size": batch_size, **report}


def bench_plan(
    preset: str,
    *,
    batch_size: int,
    window: int,
    capacity_share: float,
    steps: int,
    warm_up: int,
    numpy: bool,
    curve: bool,
    seed: int,
) -> dict[str, Any]:
    """Plan a generated stream of `preset`, all its tables in one row layout; indexing is not measured."""
    stream = FeatureStream(load_preset(preset, skew="default", max_cardinality=None), seed, BLOCK_ROWS, 0.0, 1 << 40)
    batches = stream_locations(stream, window + warm_up + steps, batch_size)
    report = plan_bench.measure(
        batches, window=window, capacity_share=capacity_share, warm_up=warm_up, numpy=numpy, curve=curve
    )
    return {"preset": preset, "batch_size": batch_size, **report}


def stream_locations(stream: FeatureStream, num_batches: int, batch_size: int) -> list[U64]:
    """Locations of the unique rows of each of the first batches, uint64 [U], by a fresh index."""
    tables = [IndexTable(uid=table_uid(name), group=0) for name in stream.preset.sparse]
    found: list[U64] = []
    with DIT(tables) as index:
        number = 0
        while len(found) < num_batches:
            for batch in _block_batches(stream, number, BLOCK_ROWS, batch_size):
                indexed = index.index(batch)
                if indexed.ticket is not None:
                    index.commit(indexed.ticket)
                found.append(indexed.groups[0].locations)
            number += 1
    return found[:num_batches]


def popular_ids(stream: FeatureStream, rows: int) -> list[U32]:
    """For each column its most popular ids, as many a column (where it has them) as add up to about `rows`."""
    cardinalities = [law.cardinality for law in stream.preset.sparse.values()]
    if rows > sum(cardinalities):
        raise ValueError(f"rows={rows:,}, but the preset has only {sum(cardinalities):,} ids")
    low, high = 0, max(cardinalities)
    while low < high:
        middle = (low + high) // 2
        if sum(min(c, middle) for c in cardinalities) < rows:
            low = middle + 1
        else:
            high = middle
    return [
        permutation(np.arange(min(c, low), dtype=np.uint32))
        for permutation, c in zip(stream.permutations, cardinalities, strict=True)
    ]


def stream_batches(stream: FeatureStream, samples: int, batch_size: int) -> list[Batch]:
    """Batches of the first `samples` rows of a stream (whole batches)."""
    batches: list[Batch] = []
    for number in range(-(-samples // BLOCK_ROWS)):
        batches += _block_batches(stream, number, min(BLOCK_ROWS, samples - number * BLOCK_ROWS), batch_size)
    return batches


def _block_batches(stream: FeatureStream, number: int, rows: int, batch_size: int) -> list[Batch]:
    """Batches of the first `rows` rows of one block (the last may be short)."""
    block = stream.block(number)
    batches: list[Batch] = []
    for start in range(0, rows, batch_size):
        part = block.slice(start, min(start + batch_size, block.rows))
        masks = [None if valid.all() else ~valid for valid in part.ids_valid]
        batches.append([IdColumn(c, part.ids[c], masks[c]) for c in range(len(part.ids))])
    return batches
