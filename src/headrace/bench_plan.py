"""`headrace bench plan`: the window planner on a generated stream."""

from __future__ import annotations

from typing import Any

from headrace.bench import BLOCK_ROWS, preset_stream, stream_batches
from headrace.formats.generate.features import FeatureStream
from headrace.formats.schema import table_uid
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import U64, IndexTable
from headrace.ingest.plan.bench import measure


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
    batches = stream_locations(preset_stream(preset, seed), window + warm_up + steps, batch_size)
    report = measure(batches, window=window, capacity_share=capacity_share, warm_up=warm_up, numpy=numpy, curve=curve)
    return {"preset": preset, "batch_size": batch_size, **report}


def stream_locations(stream: FeatureStream, num_batches: int, batch_size: int) -> list[U64]:
    """Locations of the unique rows of each of the first batches, uint64 [U], by a fresh index."""
    tables = [IndexTable(uid=table_uid(name), group=0) for name in stream.preset.sparse]
    found: list[U64] = []
    block = 0
    with DIT(tables) as index:
        while len(found) < num_batches:
            for batch in stream_batches(stream, BLOCK_ROWS, batch_size, first_block=block):
                indexed = index.index(batch)
                if indexed.ticket is not None:
                    index.commit(indexed.ticket)
                found.append(indexed.groups[0].locations)
            block += 1
    return found[:num_batches]
