"""`headrace bench`: the commands that measure."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from headrace.cli_report import json_option, write_report
from headrace.formats.generate.presets import preset_names
from headrace.indexer.bench_ranks import ORDERS
from headrace.indexer.exchange.communicator import connect
from headrace.indexer.exchange.mpi_transport import launched_ranks


class Threads(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Numbers of threads, "1,2,4"."""

    name = "n,n,.."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        numbers = click.IntRange(1, 256)
        convert: Callable[..., int] = numbers.convert
        threads = tuple(convert(part, param, ctx) for part in str(value).split(","))
        if len(set(threads)) < len(threads):
            self.fail(f"{value!r} has a number twice", param, ctx)
        return threads


class Count(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A whole number, also as 50e6."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not 1 <= number <= 2**40 or number != int(number):
            self.fail(f"{value!r} is not a whole number from 1 on", param, ctx)
        return int(number)


def _plot_file(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Refuse at once, not after an hour of work, what cannot be drawn."""
    if path is not None:
        from headrace.bench_plot import require_matplotlib

        require_matplotlib()
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise click.BadParameter(f"there is no folder {os.path.dirname(os.path.abspath(path))!r}", ctx, param)
    return path


@click.group("bench")
def bench() -> None:
    """Measure throughput, with the physical limit and the peers in the same run."""


@bench.command("index")
@click.option("--preset", type=click.Choice(preset_names()), default="criteo-terabyte", show_default=True)
@click.option("--data", metavar="PATH", help="Criteo text (a file, glob or folder) instead of the preset's stream.")
@click.option("--labels/--no-labels", default=True, help="Whether the files of --data have a label column.")
@click.option(
    "--rows", type=Count(), help="Rows resident in the index.  [default: 5e6; with --data those that its ids make]"
)
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--threads", type=Threads(), default=(1,), help="Numbers of threads to measure, as 1,2,4.")
@click.option("--samples", type=Count(), default=262_144, show_default=True, help="Rows of the measured stream.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Interleaved measurements.")
@click.option("--peers/--no-peers", default=True, show_default=True, help="Measure baselines and peers too.")
@click.option(
    "--insert-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of a batch's unique ids that were never seen; 1: a first pass over new ids.",
)
@click.option("--plot", metavar="FILE", callback=_plot_file, help="Draw throughput against threads (PNG, SVG, PDF).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--ranks/--no-ranks",
    default=None,
    help="Measure the index spread over the ranks of an MPI launcher.  [default: when it has started several]",
)
@click.option("--ring/--no-ring", default=None, help="Ranks: visit peers around the ring, or from rank 0 up, not both.")
@click.option("--request-threads", type=click.IntRange(1, 256), default=1, help="Ranks: request streams of each rank.")
@click.option("--parser", is_flag=True, help="Ranks: decode Criteo text beside, in a thread.")
@click.option("--timeout-s", type=click.FloatRange(0.1, 3600), default=60.0, help="Ranks: longest wait for a peer.")
@json_option
def bench_index_command(
    preset: str,
    json_path: str | None,
    plot: str | None,
    ranks: bool | None,
    ring: bool | None,
    request_threads: int,
    parser: bool,
    timeout_s: float,
    **options: Any,
) -> None:
    """Samples a second that the index deduplicates and looks up; without a model.

    Under `mpirun -n N` the index is spread over N ranks, and every unique key is asked of its owner.
    """
    from headrace.bench import bench_index, bench_ranks

    if ranks or (ranks is None and launched_ranks() > 1):
        ranks_options = _of_ranks(options, plot)
        try:
            communicator = connect("mpi", timeout_s=timeout_s)
        except RuntimeError as error:
            raise click.ClickException(str(error)) from error
        spread = bench_ranks(
            communicator,
            preset,
            **ranks_options,
            orders=tuple(ORDERS) if ring is None else ("ring" if ring else "no_ring",),
            request_threads=request_threads,
            parser=parser,
        )
        if spread is not None:
            write_report(spread, json_path)
        return
    report = bench_index(preset, **options)
    write_report(report, json_path)
    if plot is not None:
        from headrace.bench_plot import plot_threads

        plot_threads(report, plot)


def _of_ranks(options: dict[str, Any], plot: str | None) -> dict[str, Any]:
    """The options that hold for ranks; the others are refused, where they were given."""
    if options["data"] or options["insert_share"] or plot or len(options["threads"]) > 1:
        raise click.UsageError("--data, --insert-share, --plot and several --threads are for one process: --no-ranks")
    kept = {name: options[name] for name in ("rows", "batch_size", "samples", "rounds", "seed")}
    return {**kept, "num_threads": options["threads"][0]}
