"""`headrace bench`: the commands that measure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import click

from headrace.bench_table import index_table, rates_table
from headrace.cli_inputs import dataset_paths
from headrace.cli_report import json_option, note, plot_option, refuse_given, rounds_option, write_report
from headrace.formats.generate.presets import preset_names
from headrace.indexer.bench_ranks import ORDERS
from headrace.indexer.exchange.communicator import connect
from headrace.indexer.memory import check_memory
from headrace.launched import launch, why_not_here

_BYTES_PER_ROW = 24
"""Of the index, on average; whoever measures it keeps the ids beside it."""


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
        if not 1 <= number <= 2**53 or number != int(number):
            self.fail(f"{value!r} is not a whole number from 1 to 2^53", param, ctx)
        return int(number)


def refuse_under_launcher(ctx: click.Context, *, but: Collection[str]) -> None:
    """An error where mpirun or torchrun started several processes, and the command called is none of those `but`."""
    name = ctx.invoked_subcommand
    if name is not None and name not in but and (why := why_not_here(f"{ctx.command_path} {name}")):
        raise click.ClickException(why)


@click.group("bench")
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure throughput, with the physical limit and the peers in the same run."""
    refuse_under_launcher(ctx, but=("index",))


@bench.command("index")
@click.option("--preset", type=click.Choice(preset_names()), default="criteo-terabyte", show_default=True)
@click.option(
    "--data",
    metavar="PATH",
    callback=dataset_paths,
    help="Criteo text (a file, glob or folder) instead of the preset's stream.",
)
@click.option("--labels/--no-labels", default=True, help="Whether the files of --data have a label column.")
@click.option(
    "--rows",
    type=Count(),
    help="Rows resident in the index; the stream's own ids come on top.  [default: 5e6; with --data its ids']",
)
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--threads", type=Threads(), default=(1,), help="Numbers of threads to measure, as 1,2,4.")
@click.option(
    "--samples",
    type=Count(),
    default=262_144,
    show_default=True,
    help="Rows of the measured stream, rounded up to whole batches.",
)
@rounds_option(5)
@click.option("--peers/--no-peers", default=True, show_default=True, help="Measure baselines and peers too.")
@click.option(
    "--insert-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of a batch's unique ids that were never seen; 1: a first pass over new ids.",
)
@plot_option("Draw throughput against threads")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--ranks/--no-ranks",
    default=None,
    help="Measure the index spread over the ranks of mpirun or torchrun.  [default: when it has started several]",
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

    Under `mpirun -n N` or `torchrun --nproc-per-node N` the index is spread over N ranks, and every unique key is asked
    of its owner.
    """
    from headrace.bench import bench_index, bench_ranks

    _check_rows(options["rows"])
    launched = launch()
    if ranks or (ranks is None and launched is not None):
        refuse_given(_ONE_PROCESS, "for one process alone: --no-ranks")
        if len(options["threads"]) > 1:
            raise click.UsageError("several --threads are for one process alone: --no-ranks")
        kept = {name: options[name] for name in ("rows", "batch_size", "samples", "rounds", "seed")}
        try:
            communicator = connect("mpi" if launched is None else "auto", timeout_s=timeout_s)
        except RuntimeError as error:
            raise click.ClickException(str(error)) from error
        spread = bench_ranks(
            communicator,
            preset,
            **kept,
            num_threads=options["threads"][0],
            orders=tuple(ORDERS) if ring is None else ("ring" if ring else "no_ring",),
            request_threads=request_threads,
            parser=parser,
        )
        if spread is not None:
            streams = spread["ranks"] * request_threads
            _note_samples(options["samples"] * spread["ranks"], spread, f"in whole batches of {streams} streams")
            write_report(spread, json_path, table=rates_table(spread, "samples_per_s", spread["samples_per_s"]))
        return
    refuse_given(("ring", "request_threads", "parser", "timeout_s"), "for the ranks of mpirun or torchrun alone")
    if options["data"] is None:
        refuse_given(("labels",), "for the files of --data alone")
    else:
        refuse_given(("preset", "seed"), "for a generated stream, not with --data")
    report = bench_index(preset, **options)
    if launched is not None and launched.rank != 0:
        return  # of several processes that measure the same side by side, one reports
    _note_samples(options["samples"], report, _why_rounded(options["data"], options["batch_size"]))
    write_report(report, json_path, table=index_table(report))
    if plot is not None:
        from headrace.bench_plot import plot_threads

        plot_threads(report, plot)


def _note_samples(asked: int, report: dict[str, Any], why: str) -> None:
    if report["samples"] != asked:
        note(f"{report['samples']:,} samples were measured, {asked:,} asked for", why)


def _why_rounded(data: str | None, batch_size: int) -> str:
    return f"in whole batches of {batch_size:,}" if data is None else "the files have no more"


_ONE_PROCESS = ("data", "labels", "insert_share", "plot", "peers")


def _check_rows(rows: int | None) -> None:
    """A usage error for more rows than an index can hold in the memory that there is."""
    try:
        check_memory(f"an index of {rows or 0:,} --rows", (rows or 0) * _BYTES_PER_ROW)
    except MemoryError as error:
        raise click.UsageError(str(error)) from None
