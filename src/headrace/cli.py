"""The command line: every command takes `--json FILE` ("-" for standard output)."""

from __future__ import annotations

import dataclasses
import resource
import sys
from typing import Any

import click

from headrace import cli_embed as cli_embed  # registers its command
from headrace._version import __version__
from headrace.cli_bench import bench
from headrace.cli_plan import bench_plan_command, plan_command
from headrace.cli_report import HotRows, json_option, write_report
from headrace.cli_stats import stats_command
from headrace.formats.criteo import criteo_schema
from headrace.formats.generate.generate import generate
from headrace.formats.generate.presets import preset_names
from headrace.ingest.data_loader import DataLoader


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
@click.argument("data", nargs=-1, required=True)
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
@click.option("--labels/--no-labels", default=True, help="Whether the files have a label column.")
@click.option("--bad-records", type=click.Choice(["raise", "skip"]), default="raise", show_default=True)
@click.option("--verify-plan/--no-verify-plan", default=False, help="Prove every plan.")
@json_option
def replay(
    data: tuple[str, ...], dim: int, epochs: int, labels: bool, hot_rows: Any, json_path: str | None, **options: Any
) -> None:
    """Run the loader over Criteo text files (paths, globs or folders), without a model."""
    schema = criteo_schema(dim=dim, labels=labels)
    with DataLoader(data[0] if len(data) == 1 else list(data), schema=schema, hot_rows=hot_rows, **options) as loader:
        for _ in range(epochs):
            for _batch in loader:
                pass
        stats = loader.stats()
    stats["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write_report(stats, json_path)


bench.add_command(bench_plan_command)
for _command in (bench, plan_command, stats_command):
    main.add_command(_command)

if __name__ == "__main__":
    sys.exit(main())
