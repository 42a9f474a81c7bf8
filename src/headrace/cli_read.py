"""`headrace bench decode` and `headrace bench loader`: how fast files become columns, and planned batches."""

from __future__ import annotations

import os
from typing import Any

import click

from headrace.bench_files import PRESET, gzip_copy, head_of, parquet_copies, text_files, work_folder
from headrace.bench_table import decode_table, rates_table
from headrace.cli_bench import Count, Threads
from headrace.cli_inputs import dataset_paths
from headrace.cli_outputs import writable_folder
from headrace.cli_report import json_option, refuse_given, rounds_option, write_report
from headrace.formats.datasets import open_dataset
from headrace.ingest import bench_decode, bench_loader

PEER_BYTES = 16 << 20
"""Text that the slowest peer reads in a round."""

FORMATS = ("tsv", "tsv_gz", "parquet")

_data = click.option(
    "--data",
    metavar="PATH",
    callback=dataset_paths,
    help="Criteo text, uncompressed, instead of generated Terabyte text.",
)
_work = click.option(
    "--work",
    metavar="DIR",
    callback=writable_folder,
    help="Where to put the files that are made.  [default: temporary files]",
)
_seed = click.option("--seed", type=click.IntRange(0), default=0, show_default=True)


@click.command("decode")
@_data
@click.option("--rows", type=Count(), default=4_000_000, show_default=True, help="Rows to generate, 250 bytes each.")
@click.option("--threads", type=Threads(), default=(1, 2), help="Numbers of threads to measure.  [default: 1,2]")
@rounds_option(5)
@click.option("--peers/--no-peers", default=True, show_default=True, help="Measure other readers too.")
@_work
@_seed
@json_option
def bench_decode_command(
    data: str | None,
    rows: int,
    threads: tuple[int, ...],
    rounds: int,
    peers: bool,
    work: str | None,
    seed: int,
    json_path: str | None,
) -> None:
    """MB of Criteo text a second that are read, checked and decoded; without a model."""
    if data is not None:
        refuse_given(("rows", "seed"), "for text that is generated, not with --data")
    with work_folder(work) as folder:
        text = text_files(data, folder, rows=rows, files=4, seed=seed)
        gz = gzip_copy(text[0], folder)
        small = head_of(text[0], PEER_BYTES, folder) if peers else None
        schema = open_dataset(PRESET, text).schema
        report = bench_decode.measure(text, gz, schema, small=small, threads=threads, rounds=rounds)
    report = {**_source(data), "cores": len(os.sched_getaffinity(0)), **report}
    write_report(report, json_path, table=decode_table(report))


@click.command("loader")
@_data
@click.option("--rows", type=Count(), default=4_000_000, show_default=True, help="Rows to generate, 250 bytes each.")
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--window", type=click.IntRange(0), default=200, show_default=True, help="Batches planned ahead (L).")
@click.option("--capacity", type=click.IntRange(1), help="Rows of the arena.")
@click.option("--threads", type=click.IntRange(1, 256), default=2, show_default=True, help="The loader's num_workers.")
@click.option("--formats", multiple=True, type=click.Choice(FORMATS), default=FORMATS, show_default=True)
@rounds_option(3, "Interleaved passes.")
@_work
@_seed
@json_option
def bench_loader_command(
    data: str | None,
    rows: int,
    formats: tuple[str, ...],
    work: str | None,
    seed: int,
    json_path: str | None,
    **options: Any,
) -> None:
    """Rows a second from raw files to batches that are deduplicated, looked up and planned; without a model."""
    if data is not None:
        refuse_given(("rows", "seed"), "for text that is generated, not with --data")
    with work_folder(work) as folder:
        text = text_files(data, folder, rows=rows, files=4, seed=seed)
        readers: dict[str, bench_loader.OpenReader] = {}
        for name in FORMATS:
            if name in formats:
                dataset, files = PRESET, text
                if name == "tsv_gz":
                    files = [gzip_copy(path, folder) for path in text]
                elif name == "parquet":
                    dataset, files = "parquet", parquet_copies(text, folder, threads=options["threads"])
                readers[name] = _opener(dataset, files)
        report = bench_loader.measure(readers, **options)
    report = {**_source(data), "cores": len(os.sched_getaffinity(0)), **report}
    write_report(report, json_path, table=rates_table(report, "rows_per_s", report["rows_per_s"]))


def _opener(dataset: str, files: list[str]) -> bench_loader.OpenReader:
    return lambda: open_dataset(dataset, files)


def _source(data: str | None) -> dict[str, str]:
    return {"preset": PRESET} if data is None else {"data": data}
