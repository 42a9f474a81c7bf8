"""`headrace bench`: throughput of the parts, each with the physical limit and the peers in the same run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace.arrow_buffers import null_mask, primitive_values
from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_lines import LineLayout, parse_lines
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.generate.criteo_text import format_criteo
from headrace.formats.generate.features import FeatureBlock, FeatureStream
from headrace.formats.generate.presets import load_preset
from headrace.formats.rows import RowBlock
from headrace.formats.schema import table_uid
from headrace.indexer.bench import measure
from headrace.indexer.bench_contenders import Batch, Residents
from headrace.indexer.bench_ranks import ORDERS, measure_ranks
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.indexed import U32, IdColumn, IndexTable

BLOCK_ROWS = 1 << 16

DEFAULT_ROWS = 5_000_000


def bench_index(
    preset: str,
    *,
    data: str | None = None,
    labels: bool = True,
    rows: int | None,
    batch_size: int,
    threads: tuple[int, ...],
    samples: int,
    rounds: int,
    peers: bool,
    seed: int,
    insert_share: float = 0.0,
) -> dict[str, Any]:
    """Index a generated stream of `preset` into a table that holds its `rows` most popular ids (5 M, if None).

    Or, with `data`, the first `samples` rows of Criteo text files, into a table that holds what a pass over them
    brings, and as many other ids as make up `rows`.
    """
    if data is None:
        stream = preset_stream(preset, seed)
        names = list(stream.preset.sparse)
        residents: Residents = popular_ids(stream, DEFAULT_ROWS if rows is None else rows)
        batches = whole_batches(stream, samples, batch_size)
    else:
        names = [feature.name for feature in criteo_schema().sparse]
        batches = data_batches(data, samples, batch_size, labels=labels)
        residents = data_residents(batches, len(names), rows)
    tables = [IndexTable(uid=table_uid(name), group=0) for name in names]
    report = measure(tables, residents, batches, threads=threads, rounds=rounds, peers=peers, insert_share=insert_share)
    source = {"preset": preset} if data is None else {"data": data}
    return {**source, "batch_size": batch_size, "cores": len(os.sched_getaffinity(0)), **report}


def bench_ranks(
    communicator: Communicator,
    preset: str,
    *,
    rows: int | None,
    batch_size: int,
    num_threads: int,
    samples: int,
    rounds: int,
    seed: int,
    orders: Sequence[str] = tuple(ORDERS),
    request_threads: int = 1,
    parser: bool = False,
) -> dict[str, Any] | None:
    """The index over the ranks of `communicator`; the report on rank 0, None on the others.

    `rows` are those of all ranks together, `samples` those of each, over its `request_threads` streams. All ranks draw
    from one stream of `preset`, so that they share ids, but different blocks. An error on one rank ends them all.
    """
    try:
        stream = preset_stream(preset, seed)
        share = max(1, samples // request_threads)
        blocks = -(-_whole(share, batch_size) // BLOCK_ROWS)
        first = communicator.rank * request_threads
        report = measure_ranks(
            [IndexTable(uid=table_uid(name), group=0) for name in stream.preset.sparse],
            popular_ids(stream, DEFAULT_ROWS if rows is None else rows),
            [
                whole_batches(stream, share, batch_size, first_block=(first + s) * blocks)
                for s in range(request_threads)
            ],
            communicator=communicator,
            orders=orders,
            rounds=rounds,
            num_threads=num_threads,
            beside=text_decoder(seed) if parser else None,
        )
    except BaseException as error:
        if communicator.world_size > 1:
            communicator.end_all(error)
        raise
    head = {"preset": preset, "batch_size": batch_size, "cores": len(os.sched_getaffinity(0))}
    return {**head, **report} if communicator.rank == 0 else None


def text_decoder(seed: int, rows: int = 4096) -> Callable[[], int]:
    """Decodes the same `rows` generated lines of Criteo text at each call, and gives their number."""
    part = preset_stream("criteo-kaggle", seed).block(0).slice(0, rows)
    text = format_criteo(None, part.dense, part.dense_valid, part.ids, part.ids_valid)
    layout = LineLayout.from_schema(criteo_schema(labels=False))

    def decode() -> int:
        return parse_lines(text, layout, lines=rows).rows

    return decode


def preset_stream(preset: str, seed: int) -> FeatureStream:
    return FeatureStream(load_preset(preset, skew="default", max_cardinality=None), seed, BLOCK_ROWS, 0.0, 1 << 40)


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


def data_residents(batches: Sequence[Batch], num_tables: int, rows: int | None) -> Residents:
    """For each table the ids of `batches`, and others (above 32 bits, as many a table) that make up `rows`."""
    met = []
    for table in range(num_tables):
        columns = [batch[table] for batch in batches]
        ids = [np.asarray(c.values if c.missing is None else c.values[~c.missing]) for c in columns]
        met.append(np.unique(np.concatenate([np.empty(0, np.uint32), *ids])))
    others = -(-max(0, (rows or 0) - sum(map(len, met))) // num_tables)
    if others == 0:
        return met
    return [np.concatenate([ids, np.arange(1 << 32, (1 << 32) + others, dtype=np.uint64)]) for ids in met]


def whole_batches(stream: FeatureStream, samples: int, batch_size: int, *, first_block: int = 0) -> list[Batch]:
    """As many batches of `batch_size` rows as have `samples` rows or more, of a stream's rows from a block on."""
    rows = _whole(samples, batch_size)
    pieces = stream_batches(stream, rows, batch_size, first_block=first_block)
    return pieces if BLOCK_ROWS % batch_size == 0 else cut_batches(pieces, rows // batch_size, batch_size)


def _whole(samples: int, batch_size: int) -> int:
    return -(-samples // batch_size) * batch_size


def stream_batches(stream: FeatureStream, samples: int, batch_size: int, *, first_block: int = 0) -> list[Batch]:
    """Batches of the first `samples` rows or more of a stream from a block on, which end where its blocks do."""
    batches: list[Batch] = []
    for number in range(-(-samples // BLOCK_ROWS)):
        block = stream.block(first_block + number)
        for start in range(0, min(BLOCK_ROWS, samples - number * BLOCK_ROWS), batch_size):
            batches.append(_stream_batch(block.slice(start, min(start + batch_size, block.rows))))
    return batches


def cut_batches(pieces: Sequence[Batch], batches: int, rows: int) -> list[Batch]:
    """`batches` batches of `rows` ids a column from pieces of a stream, which are cut where its blocks end."""
    batched: list[list[IdColumn]] = [[] for _ in range(batches)]
    for parts in zip(*pieces, strict=True):
        values = np.concatenate([np.asarray(part.values) for part in parts])
        masks = [np.zeros(len(p.values), np.bool_) if p.missing is None else p.missing for p in parts]
        missing = None if all(part.missing is None for part in parts) else np.concatenate(masks)
        for i, batch in enumerate(batched):
            cut = slice(i * rows, (i + 1) * rows)
            batch.append(IdColumn(parts[0].table, values[cut], None if missing is None else missing[cut]))
    return [*batched]


def _stream_batch(part: FeatureBlock) -> Batch:
    masks = [None if valid.all() else ~valid for valid in part.ids_valid]
    return [IdColumn(c, part.ids[c], masks[c]) for c in range(len(part.ids))]


def data_batches(data: str, samples: int, batch_size: int, *, labels: bool = True) -> list[Batch]:
    """Batches of the first `samples` rows (or fewer, if there are no more) of Criteo text: a path, glob or folder."""
    schema = criteo_schema(labels=labels)
    names = [feature.name for feature in schema.sparse]
    return [_data_batch(rows, names) for rows in _rebatched(CriteoFiles(data, schema), samples, batch_size)]


def _rebatched(reader: CriteoFiles, samples: int, batch_size: int) -> Iterator[RowBlock]:
    held: list[RowBlock] = []
    have = 0
    for text in reader.raw_blocks():
        block = reader.settle(reader.decode(text))
        start = 0
        while start < block.num_rows and samples:
            part = block.slice(start, min(block.num_rows - start, min(batch_size, samples) - have))
            held.append(part)
            start, have = start + part.num_rows, have + part.num_rows
            if have == min(batch_size, samples):
                yield RowBlock.concat(held)
                samples, have, held = samples - have, 0, []
        if not samples:
            return
    if held:
        yield RowBlock.concat(held)


def _data_batch(rows: RowBlock, names: Sequence[str]) -> Batch:
    columns = [rows.data.column(name) for name in names]
    return [IdColumn(c, primitive_values(column), null_mask(column)) for c, column in enumerate(columns)]
