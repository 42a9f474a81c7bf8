"""`headrace bench embed`: the time of a training step of the embedding rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from headrace.bench import preset_stream, whole_batches
from headrace.cli_report import json_option, rounds_option, write_report
from headrace.embed.bench import OPTIMIZERS, measure
from headrace.formats.generate.presets import preset_names
from headrace.formats.rows import Source, SourceRange
from headrace.formats.schema import OptimizerName, Schema, Sparse, Table
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn
from headrace.ingest.batch import Batch
from headrace.ingest.indexed_rows import I32, IndexedRows
from headrace.ingest.nodes.index import index_tables


def bench_embed(
    preset: str,
    *,
    batch_size: int,
    dim: int,
    threads: int,
    batches: int,
    rounds: int,
    mean_ids: int,
    shapes: Sequence[tuple[int, int]] = (),
    peers: bool,
    seed: int,
) -> dict[str, Any]:
    """Train on `batches` batches of a generated stream of `preset`, over and over; see :mod:`headrace.embed.bench`.

    With `mean_ids` above 1 every bag has 0 to twice as many ids, drawn from as many rows of the stream; there are fewer
    batches then, 2 at least. `shapes` are further (dim, mean_ids), whose figures are in ``table`` beside the first.
    """
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "threads": threads,
        "rounds": rounds,
        "peers": peers,
        "seed": seed,
    }
    table = [
        _bench_shape(preset, dim=d, mean_ids=m, batches=_fewer(batches, m), **options)
        for d, m in ((dim, mean_ids), *shapes)
    ]
    return {**table[0], "table": [{key: one[key] for key in TABLE_KEYS} for one in table]}


TABLE_KEYS = (
    "dim", "mean_ids", "ids", "unique_rows", "step_ms", "limit_ms", "ratio_to_limit", "times_faster_than_best_peer",
    "by_optimizer", "peers", "bandwidth_gb_per_s",
)  # fmt: skip


def _fewer(batches: int, mean_ids: int) -> int:
    return max(min(batches, 2), batches // mean_ids)


def _bench_shape(
    preset: str,
    *,
    batch_size: int,
    dim: int,
    threads: int,
    batches: int,
    rounds: int,
    mean_ids: int,
    peers: bool,
    seed: int,
) -> dict[str, Any]:
    stream = preset_stream(preset, seed)
    columns = whole_batches(stream, batches * batch_size * mean_ids, batch_size * mean_ids)
    lengths = [_lengths(batch_size, mean_ids, len(stream.preset.sparse), seed + i) for i in range(batches)]
    schemas = [
        bench_schema(list(stream.preset.sparse), dim, optimizer, multi_hot=mean_ids > 1) for optimizer in OPTIMIZERS
    ]
    made = [indexed_batches(schema, columns, lengths, batch_size) for schema in schemas]
    report = measure(schemas, made, threads=threads, rounds=rounds, peers=peers)
    return {"preset": preset, "batch_size": batch_size, "mean_ids": mean_ids, **report}


def bench_schema(names: list[str], dim: int, optimizer: OptimizerName, *, multi_hot: bool) -> Schema:
    return Schema(
        sparse=tuple(Sparse(name=name, multi_hot=multi_hot) for name in names),
        tables=tuple(Table(name=name, dim=dim, optimizer=optimizer) for name in names),
    )


def _lengths(batch_size: int, mean_ids: int, features: int, seed: int) -> list[I32 | None]:
    """For each feature the ids of each bag, `batch_size` · `mean_ids` in all; None: one each."""
    if mean_ids == 1:
        return [None] * features
    rng = np.random.default_rng(seed)
    return [_one_length(rng, batch_size, mean_ids) for _ in range(features)]


def _one_length(rng: np.random.Generator, batch_size: int, mean_ids: int) -> I32:
    half = rng.integers(0, 2 * mean_ids + 1, batch_size // 2)
    rest = [mean_ids] if batch_size % 2 else []
    both = np.concatenate([half, 2 * mean_ids - half, rest])  # pairs, so that the sum is exact
    return rng.permutation(both).astype(np.int32)


def indexed_batches(
    schema: Schema, columns: Sequence[Sequence[IdColumn]], lengths: list[list[I32 | None]], batch_size: int
) -> list[Batch]:
    with DIT(index_tables(schema)) as index:
        made = []
        for batch, sizes in zip(columns, lengths, strict=True):
            found = index.index(batch)
            if found.ticket is not None:
                index.commit(found.ticket)
            flat = None if sizes[0] is None else np.concatenate([s for s in sizes if s is not None])
            rows = IndexedRows(
                schema=schema,
                dense=np.empty((batch_size, 0), np.float32),
                labels=None,
                groups=found.groups,
                lengths=(flat,),
                source=Source(("generated",), (SourceRange(0, 0, batch_size),)),
                ticket=found.ticket,
            )
            made.append(rows.to_batch(None))
        return made


def _read_shapes(ctx: click.Context, param: click.Parameter, value: str) -> list[tuple[int, int]]:
    """(dim, mean ids of a bag) from DIM or DIMxIDS, comma-separated."""
    shapes = []
    for one in filter(None, value.split(",")):
        dim, x, mean_ids = one.partition("x")
        if not x:
            mean_ids = "1"
        if not (dim.isdecimal() and mean_ids.isdecimal() and 1 <= int(dim) <= 65_536 and 1 <= int(mean_ids) <= 1_000):
            raise click.BadParameter(f"{one!r} is not DIM or DIMxIDS, as in 16,64x10: dims to 65536, ids to 1000")
        shapes.append((int(dim), int(mean_ids)))
    return shapes


@click.command("embed")
@click.option("--preset", type=click.Choice(preset_names()), default="criteo-kaggle", show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--dim", type=click.IntRange(1, 65_536), default=64, show_default=True)
@click.option("--threads", type=click.IntRange(1, 256), default=2, show_default=True)
@click.option("--batches", type=click.IntRange(1), default=8, show_default=True, help="Different batches.")
@rounds_option(5, "Interleaved measurements of all.")
@click.option("--mean-ids", type=click.IntRange(1), default=1, show_default=True, help="Ids of a bag; 1 is one-hot.")
@click.option(
    "--shapes", callback=_read_shapes, default="16,32,128,64x10", show_default=True,
    help="Further DIM or DIMxMEAN_IDS in the report's table; '' for none.",
)  # fmt: skip
@click.option("--peers/--no-peers", default=True, show_default=True, help="Measure what users have at hand too.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@json_option
def bench_embed_command(preset: str, json_path: str | None, **options: Any) -> None:
    """Milliseconds of one training step of the embedding rows: forward, backward, update; without a model."""
    write_report(bench_embed(preset, **options), json_path)
