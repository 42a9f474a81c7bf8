"""Commands about window plans."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import click

from headrace.bench_plan import bench_plan
from headrace.cli_dataset import one_or_all, optional_dataset_options, refuse_beside_schema, text_options
from headrace.cli_inputs import open_data, readable
from headrace.cli_outputs import replaceable
from headrace.cli_plan_ranks import links_option, plan_ranks
from headrace.cli_report import HotRows, json_option, note, plot_option, preset_batch_size, refuse_given, write_report
from headrace.formats.generate.presets import preset_names
from headrace.formats.schema import Schema
from headrace.ingest.plan.plan_diff import first_difference, header_differences
from headrace.ingest.plan.plan_file import load_plans, save_plans
from headrace.ingest.plan.simulation.links import LinkModel
from headrace.plan_report import draw, fewer_hot_rows, planned, step_rows, summary


@click.command("plan")
@click.option("--preset", type=click.Choice(preset_names()), default="criteo-kaggle", show_default=True)
@preset_batch_size(16_384)
@click.option("--window", type=click.IntRange(1), default=200, show_default=True, help="Batches planned ahead (L).")
@click.option(
    "--capacity-share",
    type=click.FloatRange(0, min_open=True),
    default=0.25,
    show_default=True,
    help="Arena rows, as a share of the window's distinct rows.",
)
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True, help="Measured steps.")
@click.option("--warm-up", type=click.IntRange(0), default=100, show_default=True, help="Steps before them.")
@click.option("--numpy/--no-numpy", default=True, show_default=True, help="Measure a planner in NumPy too.")
@click.option("--curve", is_flag=True, help="Hit rate at 1, 2, 5, 10, 25, 50 % of the window's distinct rows.")
@click.option(
    "--history", type=click.IntRange(0), default=0, show_default=True, help="Batches indexed before: an older index."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@json_option
def bench_plan_command(preset: str, json_path: str | None, **options: Any) -> None:
    """Milliseconds a batch that planning takes, and how near the plans are to the offline optimum."""
    write_report(bench_plan(preset, **options), json_path)


@click.command("plan")
@optional_dataset_options
@click.option("--window", type=click.IntRange(0), default=32, show_default=True, help="Batches planned ahead (L).")
@click.option("--capacity", type=click.IntRange(1), help="Rows of the arena of each row layout.  [1048576]")
@click.option("--hot-rows", type=HotRows(), default="auto", show_default=True, help='Rows pinned, or "auto".')
@preset_batch_size(8192)
@click.option("--dim", type=click.IntRange(1), default=16, show_default=True)
@click.option("--num-workers", type=click.IntRange(0), default=2, show_default=True)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=0,
    help="Print so many of the first steps too. Ranks: play so many.  [20]",
)
@click.option(
    "--out", metavar="FILE", callback=replaceable, help="Save the plans (Arrow IPC). Ranks: a table of steps and ranks."
)
@click.option("--read", metavar="FILE", callback=readable, help="Read saved plans, in the place of DATA.")
@click.option("--verify", is_flag=True, help="Prove the plans; exit code 1 if they are wrong.")
@click.option(
    "--diff", nargs=2, metavar="A B", callback=readable, help="Compare two saved files; exit code 1 if they differ."
)
@plot_option("Draw residency, hit rate and bytes over the steps. Ranks: bytes and time over R and over the ranks")
@links_option
@json_option
def plan_command(
    data: tuple[str, ...],
    steps: int,
    out: str | None,
    read: str | None,
    verify: bool,
    diff: tuple[str, str] | None,
    plot: str | None,
    ranks: tuple[int, ...] | None,
    links: LinkModel | None,
    preset: str | None,
    dataset: str,
    schema: Schema | None,
    labels: bool,
    separator: str | None,
    dim: int,
    seed: int,
    json_path: str | None,
    **options: Any,
) -> None:
    """Plan a dataset, or read saved plans: print, prove, compare or draw them.

    With --ranks: play so many ranks over one trace (DATA, or a --preset's generated stream), all tables with
    vectors of --dim, and tell bytes, balance, arena rows and time under a model of the links, with and without R.
    """
    if ranks:
        if read or diff or verify or options["capacity"] is not None or options["hot_rows"] != "auto":
            raise click.UsageError("--read, --diff, --verify, --capacity and --hot-rows are for one rank: no --ranks")
        refuse_given(("schema", "separator"), "for one rank: with --ranks all tables have vectors of --dim")
        if preset:
            refuse_given(("dataset",), "says what DATA is; --preset has none")
        one_rank = ("capacity", "hot_rows")
        common = {name: value for name, value in options.items() if name not in one_rank}
        plan_ranks(data, ranks=ranks, links=links, preset=preset, dataset=dataset, seed=seed, steps=steps, out=out,
                   plot=plot, json_path=json_path, dim=dim, labels=labels, **common)  # fmt: skip
        return
    refuse_given(("links", "preset", "seed"), "for --ranks alone")
    if (bool(data) + bool(read) + bool(diff)) != 1:
        raise click.UsageError("give DATA, --read FILE or --diff A B, one of them")
    refuse_beside_schema(schema)
    if not data:  # saved plans
        refuse_given(
            ("dataset", "schema", "separator", "labels", "dim", *options), "for the plans that are made of DATA"
        )
    if diff:
        refuse_given(("steps", "out", "verify", "plot"), "for one stream of plans, not --diff")
        _compare(*diff, json_path)
    fewer = None
    if read:
        plans = load_plans(read)
    else:
        given: dict[str, Any] = {"schema": schema, "dim": dim, "labels": labels, **text_options(dataset, separator)}
        reader = open_data(dataset, one_or_all(data), **given)
        found = planned(reader, **options)
        plans, fewer = found.plans, fewer_hot_rows(found, options["hot_rows"])
        if fewer is not None:
            _note_fewer(fewer, reader.schema)
    violations = plans.verify() if verify else []
    result = summary(plans)
    if verify:
        result |= {"violations": len(violations), "first_violations": tuple(str(v) for v in violations[:5]) or None}
    if fewer is not None and json_path:
        result["fewer_hot_rows"] = fewer
    if steps and json_path:
        result["first_steps"] = step_rows(plans)[:steps]
    if out:
        save_plans(out, plans)
    if plot:
        draw(plans, plot)
    write_report(result, json_path)
    if steps and json_path is None:
        for row in step_rows(plans)[:steps]:
            click.echo("  ".join(f"{key} {value}" for key, value in row.items()))
    if violations:
        raise SystemExit(1)


def _note_fewer(fewer: dict[str, Any], schema: Schema) -> None:
    for group, given, why in zip(schema.groups, fewer["given"], fewer["why"], strict=True):
        if why is not None:
            of = f" of {schema.layout_in_words(group)}" if len(schema.groups) > 1 else ""
            note(f"--hot-rows {fewer['asked']}: {given} rows{of} are pinned", why)


def _compare(a: str, b: str, json_path: str | None) -> NoReturn:
    left, right = load_plans(a), load_plans(b)
    header, found = header_differences(left, right), first_difference(left, right)
    equal = not header and found is None
    result = {
        "equal": equal,
        "header": [dataclasses.asdict(one) for one in header],
        "difference": None if found is None else dataclasses.asdict(found),
    }
    words = {
        "equal": equal,
        "header": [f"{one.field}: {one.words}" for one in header],
        "difference": str(found or "none"),
    }
    write_report(result, json_path, table=words)
    raise SystemExit(0 if equal else 1)
