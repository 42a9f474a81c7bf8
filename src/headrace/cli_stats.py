"""Statistics of a dataset: skew, and what the choice of the hot rows costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from headrace.cli_dataset import one_or_all, optional_dataset_options, refuse_beside_schema, text_options
from headrace.cli_feature_stats import count_features, feature_options, feature_table
from headrace.cli_inputs import open_data
from headrace.cli_report import json_option, note, plot_option, preset_batch_size, refuse_given, write_report
from headrace.formats.criteo import criteo_schema
from headrace.formats.generate.presets import preset_names
from headrace.formats.schema import Group, Schema
from headrace.hot_set_report import HotSetMeter, draw_curves
from headrace.indexed_stream import indexed_batches
from headrace.indexer.cost_curve import RowCosts, measured_costs
from headrace.indexer.indexed import U32, U64
from headrace.ranks_trace import indexed_preset

PUBLISHED_ROWS = {"criteo-kaggle": 32_768, "criteo-terabyte": 65_536, "taobao-userbehavior": 227_000}
"""Sizes of the hot set whose coverage of the accesses is published."""

DEFAULT_COSTS = {"c_early": 1.0, "c_late": 2.0, "c_ar": 1.0, "c_step": 0.0}
"""Of a row, in no unit: as a late one is awaited, it counts twice."""


@click.command("stats")
@optional_dataset_options
@feature_options
@click.option("--preset", type=click.Choice(preset_names()), help="A generated stream, in the place of DATA.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the generated stream.")
@preset_batch_size(8192)
@click.option("--batches", type=click.IntRange(1), default=100, show_default=True, help="Batches that are counted.")
@click.option(
    "--top-rows",
    type=click.IntRange(1),
    multiple=True,
    help="Tell what so many of the most accessed rows cover; may be repeated.  [with --preset: the published number]",
)
@click.option(
    "--held-out",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Batches after those, on which the coverage is measured too.",
)
@click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Ranks (W).")
@click.option("--dim", type=click.IntRange(1), default=16, show_default=True)
@click.option("--num-workers", type=click.IntRange(0), default=2, show_default=True)
@click.option("--calibrate", is_flag=True, help="Measure the costs of a row in this process, in nanoseconds.")
@click.option("--c-early", type=click.FloatRange(0), help="Cost of a row requested off the critical path.  [1]")
@click.option("--c-late", type=click.FloatRange(0), help="Cost of a row requested on it.  [2]")
@click.option("--c-ar", type=click.FloatRange(0), help="Cost of a row all-reduced.  [1]")
@click.option("--c-step", type=click.FloatRange(0), help="Cost of a step in which there is an R at all.  [0]")
@plot_option("Draw the cost over the size of R")
@json_option
def stats_command(
    data: tuple[str, ...],
    preset: str | None,
    dataset: str,
    schema: Schema | None,
    features: bool,
    feature_rows: int | None,
    max_entries: int,
    plot_features: str | None,
    batches: int,
    top_rows: tuple[int, ...],
    held_out: int,
    world_size: int,
    calibrate: bool,
    plot: str | None,
    json_path: str | None,
    **options: Any,
) -> None:
    """Each column of DATA: cardinality, missing and top shares, coverage, over all rows or `--feature-rows`.

    Then, of each row layout, the presence of rows in the first batches, the cost of each size of R, the hot set, and
    what the most accessed rows cover: of the accesses, and of the unique rows of batches, which are what travels."""
    if bool(data) == bool(preset):
        raise click.UsageError("give DATA or --preset, one of them")
    refuse_beside_schema(schema)
    counting = ("feature_rows", "max_entries", "plot_features")
    if preset:
        refuse_given(("dataset", "schema", "separator", "labels", "features", *counting), "for DATA, not with --preset")
    else:
        refuse_given(("seed",), "for the generated stream of --preset alone")
    if not features:
        refuse_given(counting, "for the columns that --no-features leaves out")
    if not (preset or top_rows):
        refuse_given(("held_out",), "for --top-rows alone")
    given = {name: options.pop(name) for name in DEFAULT_COSTS}
    if calibrate:
        refuse_given(given, "in a unit of its own beside nanoseconds of --calibrate: give all costs, or none")
    dim, batch_size, num_workers = (options[name] for name in ("dim", "batch_size", "num_workers"))
    reader = None
    if data:
        text = text_options(dataset, options["separator"])
        reader = open_data(dataset, one_or_all(data), schema=schema, dim=dim, labels=options["labels"], **text)
    schema = criteo_schema(dim=dim) if reader is None else reader.schema
    counted = {}
    if reader is not None and features:
        counted["features"] = count_features(
            reader, rows=feature_rows, max_entries=max_entries, num_workers=num_workers, plot=plot_features
        )
        if json_path != "-":
            click.echo(feature_table(counted["features"]) + "\n")
    if not schema.groups:
        note("there is no hot set", "the schema has no sparse column")
        write_report(counted, json_path, hidden=("features",))
        return
    if world_size == 1:
        click.echo("note: one rank has nobody to reduce with; --world-size says for how many ranks R is", err=True)
    sizes = top_rows or ((PUBLISHED_ROWS[preset],) if preset else ())
    hot_sets = [
        HotSetMeter(_costs(group, given, calibrate=calibrate), world_size=world_size, batches=batches, sizes=sizes)
        for group in schema.groups
    ]
    read = {"batch_size": batch_size, "num_batches": batches + (held_out if sizes else 0), "num_workers": num_workers}
    stream = _of_preset(preset, seed=options["seed"], **read) if reader is None else indexed_batches(reader, **read)
    for batch in stream:
        for hot_set, (locations, query_ids) in zip(hot_sets, batch, strict=True):
            hot_set.add(locations, query_ids)
    if plot:
        titles = [schema.layout_in_words(group) for group in schema.groups] if len(hot_sets) > 1 else [""]
        draw_curves([hot_set.curve for hot_set in hot_sets], titles, plot)
    unit = "ns" if calibrate else None
    records = [
        {**hot_set.report(), "cost_unit": unit, "coverage": hot_set.coverage(preset=preset, batch_size=batch_size)}
        for hot_set in hot_sets
    ]
    if len(records) > 1:
        records = [_identity(schema, group) | one for group, one in zip(schema.groups, records, strict=True)]
    shown = records if json_path else [_for_people(one) for one in records]
    if len(records) == 1:
        result, table = records[0], shown[0]
    else:
        result = {"layouts": records}
        table = {f"layout {number}": one for number, one in enumerate(shown, start=1)}
    write_report(result | counted, json_path, table=table)


def _costs(group: Group, given: Mapping[str, float | None], *, calibrate: bool) -> RowCosts:
    """Of a row of a layout: measured, in nanoseconds, or as given."""
    if calibrate:
        return _nanoseconds(measured_costs(row_bytes=group.row_bytes))
    return RowCosts(**{name: DEFAULT_COSTS[name] if cost is None else cost for name, cost in given.items()})


def _nanoseconds(costs: RowCosts) -> RowCosts:
    return RowCosts(
        c_early=1e9 * costs.c_early, c_late=1e9 * costs.c_late, c_ar=1e9 * costs.c_ar, c_step=1e9 * costs.c_step
    )


def _identity(schema: Schema, group: Group) -> dict[str, Any]:
    """Which of several row layouts a report is of."""
    return {
        "tables": [schema.tables[t].name for t in group.tables],
        "dim": group.dim,
        "optimizer": group.optimizer,
    }


def _for_people(record: dict[str, Any]) -> dict[str, Any]:
    """Where nothing lists them: without the curve, and with a line for each number of most accessed rows."""
    kept = {key: value for key, value in record.items() if key not in ("curve", "coverage")}
    return kept | {
        f"top_{found['rows']}": {k: v for k, v in found.items() if k != "rows"} for found in record["coverage"]
    }


def _of_preset(
    preset: str | None, *, seed: int, batch_size: int, num_batches: int, num_workers: int
) -> Iterator[list[tuple[U64, U32]]]:
    """Unique locations and query ids of the first batches of a generated stream, whose tables are of one layout."""
    assert preset is not None
    found = indexed_preset(preset, batch_size=batch_size, num_batches=num_batches, num_workers=num_workers, seed=seed)
    return ([batch] for batch in found)
