"""The command line: every command takes `--json FILE` ("-" for standard output)."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import click

from headrace._version import __version__
from headrace.cli_bench import bench, refuse_under_launcher
from headrace.cli_convert import convert
from headrace.cli_embed import bench_embed_command
from headrace.cli_lint import lint
from headrace.cli_plan import bench_plan_command, plan_command
from headrace.cli_read import bench_decode_command, bench_loader_command
from headrace.cli_replay import replay
from headrace.cli_report import json_option, write_report
from headrace.cli_stats import stats_command
from headrace.formats.generate.generate import RESULTS, generate
from headrace.formats.generate.presets import preset_names


class _Group(click.Group):
    """Commands whose expected errors (bad files or values, no memory) end in one line and exit code 1, not in a
    traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever read the output (`| head`) has seen enough. What is left in the buffer must not be tried again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except (OSError, ValueError) as error:
            raise click.ClickException(f"{type(error).__name__}: {error}") from error
        except MemoryError as error:
            raise click.ClickException(f"{type(error).__name__}: there is not enough memory ({error})") from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Stream click logs into the training of recommender models."""
    refuse_under_launcher(ctx, but=("bench",))


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
    found = dataclasses.asdict(report)
    if report.eval is not None:  # its parameters are those of the whole, its time is in that
        found["eval"] = {k: v for k, v in found["eval"].items() if k in ("rows", "files", "bytes", *RESULTS)}
    write_report(found, json_path, hidden=() if report.eval is not None else ("eval",))


for _command in (bench_decode_command, bench_embed_command, bench_loader_command, bench_plan_command):
    bench.add_command(_command)
for _command in (bench, convert, lint, plan_command, replay, stats_command):
    main.add_command(_command)


if __name__ == "__main__":
    sys.exit(main())
