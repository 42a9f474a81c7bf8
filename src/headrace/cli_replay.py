"""`headrace replay`: the loader run over a dataset, without a model."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any, get_args

import click

from headrace.cli_dataset import dataset_options, one_or_all, refuse_beside_schema, text_options
from headrace.cli_inputs import open_data
from headrace.cli_outputs import writable_folder
from headrace.cli_report import HotRows, json_option, refuse_given, write_report
from headrace.formats.datasets import dataset_split
from headrace.formats.growing import GrowingFolder
from headrace.formats.schema import Schema
from headrace.formats.splits import Convention, Split
from headrace.indexer.indexed import U64
from headrace.ingest.batch import Batch
from headrace.ingest.data_loader import DataLoader
from headrace.ingest.plan.capacity_curve import capacity_curve
from headrace.progress import ReplayProgress
from headrace.replay import BatchDigest, Replay, ReplayState


@click.command("replay")
@dataset_options
@click.option("--split", type=click.Choice(get_args(Split)), help="Of Criteo: this standard split only.")
@click.option("--convention", type=click.Choice(get_args(Convention)), help="Which halves are test and validation.")
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--window", type=click.IntRange(0), default=32, show_default=True, help="Batches planned ahead (L).")
@click.option("--capacity", type=click.IntRange(1), help="Rows of the arena of each row layout.  [1048576]")
@click.option(
    "--hot-rows", type=HotRows(), default="auto", show_default=True, help='Rows pinned in the R chunk, or "auto".'
)
@click.option("--dim", type=click.IntRange(1), default=16, show_default=True)
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True)
@click.option("--shuffle", is_flag=True, help="Permute rows within windows.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the shuffle.")
@click.option("--num-workers", type=click.IntRange(0), default=2, show_default=True)
@click.option("--bad-records", type=click.Choice(["raise", "skip"]), default="raise", show_default=True)
@click.option("--verify-plan/--no-verify-plan", default=False, help="Prove every plan.")
@click.option(
    "--curve",
    is_flag=True,
    help="Hit rate and early share with an unbounded arena, and with 1, 2, 5, 10, 25, 50 % of the window's distinct "
    "rows (keeps 8 bytes for each unique row of each batch).",
)
@click.option("--digest", is_flag=True, help="Hash all batches and plans, to compare two runs.")
@click.option(
    "--resume", metavar="DIR", callback=writable_folder, help="Keep the state there, and go on from it after a kill."
)
@click.option("--save-every", type=click.IntRange(1), default=1000, show_default=True, help="Batches between states.")
@click.option("--follow", is_flag=True, help="DATA is a folder in which files appear, up to one named --end-marker.")
@click.option("--end-marker", default="_END", show_default=True)
@click.option("--poll-seconds", type=click.FloatRange(0.001, 3600), default=0.5, show_default=True)
@click.option("--idle-seconds", type=click.FloatRange(0.001, 3600), help="Hand batches out when nothing came so long.")
@click.option(
    "--max-idle-seconds", type=click.FloatRange(0.001), default=3600, show_default=True, help="Then it is an error."
)
@json_option
def replay(
    data: tuple[str, ...],
    dataset: str,
    schema: Schema | None,
    split: Split | None,
    convention: Convention | None,
    dim: int,
    epochs: int,
    labels: bool,
    separator: str | None,
    bad_records: str,
    curve: bool,
    digest: bool,
    resume: str | None,
    save_every: int,
    follow: bool,
    end_marker: str,
    poll_seconds: float,
    idle_seconds: float | None,
    max_idle_seconds: float,
    json_path: str | None,
    **options: Any,
) -> None:
    """Run the loader over the files of a dataset (paths, globs, folders or URIs), without a model."""
    refuse_beside_schema(schema)
    if resume is None:
        refuse_given(("save_every",), "for --resume alone")
    if not follow:
        refuse_given(("end_marker", "poll_seconds", "max_idle_seconds"), "for --follow alone")
    if split is None:
        refuse_given(("convention",), "for --split alone")
    if split == "train":
        refuse_given(("convention",), "for --split validation and test: of train both are the same")
    if not options["shuffle"]:
        refuse_given(("seed",), "for --shuffle alone")
    paths: Any = one_or_all(data)
    if follow:
        if not isinstance(paths, str):
            raise click.UsageError("--follow reads one folder")
        paths = GrowingFolder(path=paths, end_marker=end_marker, poll_s=poll_seconds, max_idle_s=max_idle_seconds)
    reader = open_data(
        dataset,
        paths,
        schema=schema,
        dim=dim,
        labels=labels,
        bad_records=bad_records,
        **text_options(dataset, separator),
    )
    if split is not None:
        rows = reader.rows_per_file
        reader.select(dataset_split(dataset, split, convention=convention, files=reader.files, rows_per_file=rows))
    if curve and resume is not None:
        raise click.UsageError("--curve needs all batches of one run: leave --resume out")
    stream: list[list[U64]] = []

    def record(batch: Batch, epochs_done: int) -> None:
        if curve and epochs_done == 0:
            stream.append([group.locations.numpy() for group in batch.groups])

    state = None
    if resume is not None:
        parameters = {
            "dataset": dataset,
            "schema": reader.schema.digest,
            "epochs": epochs,
            "save_every": save_every,
            "digest": digest,
            **{name: value for name, value in options.items() if name not in ("num_workers", "verify_plan")},
        }
        state = ReplayState(Path(resume), save_every, parameters)
    with (
        DataLoader(reader, schema=reader.schema, idle_s=idle_seconds, **options) as loader,
        ReplayProgress(reader, loader, epochs) as progress,
    ):
        stats = Replay(loader, epochs, state, BatchDigest() if digest else None, progress, record).run()
    for name in ("rows_unmatched", "side_rows_skipped"):  # of readers that join
        if counts := getattr(reader, name, None):
            stats[name] = counts
    if curve:
        stats["curve"] = capacity_curve(stream, window=options["window"])
    stats["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write_report(stats, json_path)
