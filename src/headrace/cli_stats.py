"""Statistics of a dataset: skew, and what the choice of the hot rows costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import click
import numpy as np

from headrace.cli_dataset import one_or_all, optional_dataset_options, refuse_beside_schema, text_options
from headrace.cli_feature_stats import count_features, feature_options, feature_table
from headrace.cli_report import json_option, plot_option, preset_batch_size, refuse_given, write_report
from headrace.formats.criteo import criteo_schema
from headrace.formats.datasets import open_dataset
from headrace.formats.generate.coverage import coverage as laws_coverage
from headrace.formats.generate.coverage import unique_coverage
from headrace.formats.generate.presets import load_preset, preset_names
from headrace.formats.schema import Schema
from headrace.indexer.access_coverage import CoverageMeter, most_accessed
from headrace.indexer.cost_curve import CostCurve, RowCosts, cost_curve, measured_costs
from headrace.indexer.hotset import PresenceCounter, coverage
from headrace.indexer.indexed import U32, U64
from headrace.ingest.data_loader import DataLoader
from headrace.ranks_trace import indexed_preset

PUBLISHED_ROWS = {"criteo-kaggle": 32_768, "criteo-terabyte": 65_536, "taobao-userbehavior": 227_000}
"""Sizes of the hot set whose coverage of the accesses is published."""

CURVE_POINTS = 100

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

    Then, of one row layout, the presence of rows in the first batches, the cost of each size of R, the hot set, and
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
    counted = None
    if data and features:
        text = text_options(dataset, options["separator"])
        reader = open_dataset(
            dataset, one_or_all(data), schema=schema, dim=options["dim"], labels=options["labels"], **text
        )
        counted = count_features(
            reader,
            rows=feature_rows,
            max_entries=max_entries,
            num_workers=options["num_workers"],
            plot=plot_features,
        )
        if json_path != "-":
            click.echo(feature_table(counted) + "\n")
        if len(reader.schema.groups) != 1:
            write_report({"features": counted}, json_path, hidden=("features",))
            return
    given = {name: options.pop(name) for name in DEFAULT_COSTS}
    if calibrate:
        refuse_given(given, "in a unit of its own beside nanoseconds of --calibrate: give all costs, or none")
        costs = _nanoseconds(measured_costs(row_bytes=criteo_schema(dim=options["dim"]).groups[0].row_bytes))
    else:
        costs = RowCosts(**{name: DEFAULT_COSTS[name] if cost is None else cost for name, cost in given.items()})
    if world_size == 1:
        click.echo("note: one rank has nobody to reduce with; --world-size says for how many ranks R is", err=True)
    sizes = top_rows or ((PUBLISHED_ROWS[preset],) if preset else ())
    stream = _indexed(
        data, preset=preset, dataset=dataset, schema=schema, batches=batches + (held_out if sizes else 0), **options
    )
    counter = PresenceCounter(max_batches=batches)
    for locations, query_ids in islice(stream, batches):
        counter.add(locations, query_ids)
    curve = cost_curve(counter.presence(), costs, world_size=world_size)
    result = {**hot_set_report(counter, curve, costs, world_size), "cost_unit": "ns" if calibrate else None}
    covered = covered_by(counter, sizes, stream, preset, options["batch_size"])
    if plot:
        draw(curve, plot)
    if json_path is None:
        del result["curve"]
        result |= {f"top_{found['rows']}": {k: v for k, v in found.items() if k != "rows"} for found in covered}
    else:
        result["coverage"] = covered
    if counted is not None:
        result["features"] = counted
    write_report(result, json_path, hidden=("features",))


def _nanoseconds(costs: RowCosts) -> RowCosts:
    return RowCosts(
        c_early=1e9 * costs.c_early, c_late=1e9 * costs.c_late, c_ar=1e9 * costs.c_ar, c_step=1e9 * costs.c_step
    )


def _indexed(
    data: tuple[str, ...],
    *,
    preset: str | None,
    dataset: str,
    schema: Schema | None,
    batch_size: int,
    batches: int,
    dim: int,
    labels: bool,
    separator: str | None,
    num_workers: int,
    seed: int,
) -> Iterator[tuple[U64, U32]]:
    """Unique locations and query ids of the first batches (all tables are of one row layout)."""
    if preset is not None:
        yield from indexed_preset(
            preset, batch_size=batch_size, num_batches=batches, num_workers=num_workers, seed=seed
        )
        return
    text = text_options(dataset, separator)
    reader = open_dataset(dataset, one_or_all(data), schema=schema, dim=dim, labels=labels, **text)
    with DataLoader(
        reader,
        schema=reader.schema,
        batch_size=batch_size,
        num_workers=num_workers,
        window=0,
        hot_rows=0,
        capacity=1 << 26,
    ) as loader:
        for batch in islice(loader, batches):
            (group,) = batch.groups
            yield group.locations.numpy().view(np.uint64), group.query_ids.numpy().astype(np.uint32)


def covered_by(
    counter: PresenceCounter,
    sizes: Sequence[int],
    held_out: Iterable[tuple[U64, U32]],
    preset: str | None,
    batch_size: int,
) -> list[dict[str, Any]]:
    """What the `sizes` most accessed rows of the counted batches cover: of those batches (as published figures do), of
    the batches held out (None if there are none), and, for a preset, what its most popular rows cover by its laws."""
    if not sizes:
        return []
    locations, accesses = counter.locations(), counter.accesses()
    hot_sets = [most_accessed(locations, accesses, rows) for rows in sizes]
    meter = CoverageMeter(hot_sets)
    met = 0
    for batch in held_out:
        meter.add(*batch)
        met += 1
    laws = list(load_preset(preset).sparse.values()) if preset else []
    found: list[dict[str, Any]] = []
    for rows, hot, outside in zip(sizes, hot_sets, meter.coverage(), strict=True):
        inside = coverage(np.isin(locations, hot), accesses=accesses, batches=counter.batches())
        found.append(
            {
                "rows": rows,
                "accesses": inside.accesses,
                "unique_rows": inside.unique_rows,
                "held_out_accesses": outside.accesses if met else None,
                "held_out_unique_rows": outside.unique_rows if met else None,
            }
        )
        if laws:
            found[-1] |= {
                "law_accesses": laws_coverage(laws, rows),
                "law_unique_rows": unique_coverage(laws, rows, batch_size),
            }
    return found


def hot_set_report(counter: PresenceCounter, curve: CostCurve, costs: RowCosts, world_size: int) -> dict[str, Any]:
    """Keys as `headrace stats` writes them. `curve` holds (r, cost) at sizes of R that grow by a factor, and at the
    optimum and the ends of the band within 1 % of it."""
    hot = np.zeros(len(curve.order), np.bool_)
    hot[curve.order[: curve.optimum]] = True
    covered = coverage(hot, accesses=counter.accesses(), batches=counter.batches())
    last = len(curve.order)
    sizes = {0, last, curve.optimum, curve.band_low, curve.band_high}
    sizes |= {round(r) for r in np.geomspace(1, max(last, 1), CURVE_POINTS)}
    return {
        "batches": counter.num_batches,
        "rows": last,
        "world_size": world_size,
        "c_early": costs.c_early,
        "c_late": costs.c_late,
        "c_ar": costs.c_ar,
        "c_step": costs.c_step,
        "r_rows": curve.optimum,
        "cost": float(curve.cost[curve.optimum]),
        "cost_without_r": float(curve.cost[0]),
        "band_low": curve.band_low,
        "band_high": curve.band_high,
        "covered_accesses": covered.accesses,
        "covered_unique_rows": covered.unique_rows,
        "curve": [[r, float(curve.cost[r])] for r in sorted(s for s in sizes if s <= last)],
    }


def draw(curve: CostCurve, path: str) -> None:
    """Cost over the size of R; needs matplotlib (extra `bench`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("--plot needs matplotlib: pip install 'headrace[bench]'") from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    sizes = np.unique(np.geomspace(1, len(curve.cost), 500).astype(np.int64) - 1)
    axes.plot(sizes, curve.cost[sizes])
    axes.axvspan(curve.band_low, curve.band_high, alpha=0.2, label="within 1 %")
    axes.axvline(curve.optimum, linestyle=":", label=f"R = {curve.optimum:,}")
    axes.set_xscale("symlog")
    axes.set_xlim(left=0)
    axes.set_xlabel("rows in R")
    axes.set_ylabel("cost a step")
    axes.legend()
    figure.savefig(path)
