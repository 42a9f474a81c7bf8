"""The command line: every command takes `--json FILE` ("-" for standard output)."""

from __future__ import annotations

import dataclasses
import resource
import sys
from typing import Any, get_args

import click

from headrace._version import __version__
from headrace.cli_bench import bench
from headrace.cli_convert import convert
from headrace.cli_dataset import dataset_options, one_or_all
from headrace.cli_embed import bench_embed_command
from headrace.cli_lint import lint
from headrace.cli_plan import bench_plan_command, plan_command
from headrace.cli_report import HotRows, json_option, write_report
from headrace.cli_stats import stats_command
from headrace.formats.datasets import dataset_split, open_dataset
from headrace.formats.generate.generate import generate
from headrace.formats.generate.presets import preset_names
from headrace.formats.schema import Schema
from headrace.formats.splits import Convention, Split
from headrace.indexer.indexed import U64
from headrace.ingest.data_loader import DataLoader
from headrace.ingest.plan.capacity_curve import capacity_curve


class _Group(click.Group):
    """Commands whose expected errors (bad files, bad values) end in one line and exit code 1, not in a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (OSError, ValueError) as error:
            raise click.ClickException(f"{type(error).__name__}: {error}") from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Stream click logs into the training of recommender models."""


@main.command("generate")
@click.argument("preset", type=click.Choice(preset_names()))
@click.option("--out", required=True, metavar="DIR", help="Folder to write to.")
@click.option("--rows", type=click.IntRange(0), required=True)
@click.option("--eval-rows", type=click.IntRange(0), default=0, help="Rows of DIR/eval, which continue the stream.")
@click.option("--files", type=click.IntRange(1), default=1, show_default=True)
@click.option("--skew", default="default", show_default=True, help="Popularity: pessimistic, default or skewed.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--drift", type=click.FloatRange(0, 1), default=0.0, help="Share of ids re-ranked per day.")
@click.option("--compression", type=click.Choice(["none", "gzip"]), default="none", show_default=True)
@click.option("--labels/--no-labels", default=True)
@click.option("--max-cardinality", type=click.IntRange(1), help="Cap of the ids of a column.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier run wrote there.")
@json_option
def generate_command(preset: str, out: str, compression: str, json_path: str | None, **options: Any) -> None:
    """Write synthetic files of a public dataset's format, with calibrated skew and learnable labels."""
    report = generate(preset, out, compression=None if compression == "none" else compression, **options)
    write_report(dataclasses.asdict(report), json_path)


@main.command("replay")
@dataset_options
@click.option("--split", type=click.Choice(get_args(Split)), help="Of Criteo: this standard split only.")
@click.option("--convention", type=click.Choice(get_args(Convention)), help="Which halves are test and validation.")
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--window", type=click.IntRange(0), default=32, show_default=True, help="Batches planned ahead (L).")
@click.option("--capacity", type=click.IntRange(1), help="Rows of the arena of each row layout.")
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
    bad_records: str,
    curve: bool,
    json_path: str | None,
    **options: Any,
) -> None:
    """Run the loader over the files of a dataset (paths, globs or folders), without a model."""
    reader = open_dataset(dataset, one_or_all(data), schema=schema, dim=dim, labels=labels, bad_records=bad_records)
    if split is not None:
        reader.select(dataset_split(dataset, split, convention=convention, rows_per_file=reader.rows_per_file))
    with DataLoader(reader, schema=reader.schema, **options) as loader:
        stream: list[list[U64]] = []
        for epoch in range(epochs):
            for batch in loader:
                if curve and epoch == 0:
                    stream.append([group.locations.numpy() for group in batch.groups])
        stats = loader.stats()
    if curve:
        stats["curve"] = capacity_curve(stream, window=options["window"])
    stats["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write_report(stats, json_path)


for _command in (bench_embed_command, bench_plan_command):
    bench.add_command(_command)
for _command in (bench, convert, lint, plan_command, stats_command):
    main.add_command(_command)


if __name__ == "__main__":
    sys.exit(main())
