"""Statistics of a dataset: skew, and what the choice of the hot rows costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import click
import numpy as np

from headrace.cli_dataset import dataset_options, one_or_all
from headrace.cli_feature_stats import count_features, feature_options, feature_table
from headrace.cli_report import json_option, writable, write_report
from headrace.formats.datasets import open_dataset
from headrace.formats.file_reader import FileReader
from headrace.formats.schema import Schema
from headrace.indexer.cost_curve import CostCurve, RowCosts, cost_curve, measured_costs
from headrace.indexer.hotset import PresenceCounter, coverage
from headrace.ingest.data_loader import DataLoader

CURVE_POINTS = 100


@click.command("stats")
@dataset_options
@feature_options
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--batches", type=click.IntRange(1), default=100, show_default=True, help="Batches that are counted.")
@click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Ranks (W).")
@click.option("--dim", type=click.IntRange(1), default=16, show_default=True)
@click.option("--num-workers", type=click.IntRange(0), default=2, show_default=True)
@click.option("--calibrate", is_flag=True, help="Measure the costs a row in this process, where none are given.")
@click.option("--c-early", type=click.FloatRange(0), help="Cost of a row requested off the critical path.  [1]")
@click.option("--c-late", type=click.FloatRange(0), help="Cost of a row requested on it.  [2]")
@click.option("--c-ar", type=click.FloatRange(0), help="Cost of a row all-reduced.  [1]")
@click.option("--plot", metavar="FILE", callback=writable, help="Draw the cost over the size of R.")
@json_option
def stats_command(
    data: tuple[str, ...],
    dataset: str,
    schema: Schema | None,
    features: bool,
    feature_rows: int | None,
    max_entries: int,
    plot_features: str | None,
    world_size: int,
    calibrate: bool,
    plot: str | None,
    json_path: str | None,
    **options: Any,
) -> None:
    """Each column of a dataset (cardinality, missing and top shares, coverage), over all rows or `--feature-rows`; and
    the presence of rows in the first batches, with the cost of each size of R, the hot set (of one row layout)."""

    def open_reader() -> FileReader[Any]:
        found = {"dim": options["dim"], "labels": options["labels"]}
        return open_dataset(dataset, one_or_all(data), schema=schema, **found)

    if features:
        counted = count_features(
            open_reader(),
            rows=feature_rows,
            max_entries=max_entries,
            num_workers=options["num_workers"],
            plot=plot_features,
        )
        if json_path != "-":
            click.echo(feature_table(counted) + "\n")
    result = (
        _hot_set(open_reader, options, world_size, calibrate, plot) if len(open_reader().schema.groups) == 1 else {}
    )
    if features:
        result["features"] = counted
    write_report(result, json_path, hidden=("curve", "features"))


def _hot_set(
    open_reader: Callable[[], FileReader[Any]],
    options: dict[str, Any],
    world_size: int,
    calibrate: bool,
    plot: str | None,
) -> dict[str, Any]:
    """The presence of rows and the cost of each size of R, of the only row layout."""
    given = {name: options.pop(name) for name in ("c_early", "c_late", "c_ar")}
    row_bytes = open_reader().schema.groups[0].row_bytes
    costs = measured_costs(row_bytes=row_bytes) if calibrate else RowCosts(c_early=1.0, c_late=2.0, c_ar=1.0)
    costs = RowCosts(**{n: getattr(costs, n) if given[n] is None else given[n] for n in given})
    sizes = {name: options[name] for name in ("batch_size", "batches", "num_workers")}
    counter = count_presence(open_reader(), **sizes)
    curve = cost_curve(counter.presence(), costs, world_size=world_size)
    if plot:
        draw(curve, plot)
    return hot_set_report(counter, curve, costs, world_size)


def count_presence(reader: FileReader[Any], *, batch_size: int, batches: int, num_workers: int) -> PresenceCounter:
    """Presence and accesses of the rows of the first batches (all tables are of one row layout)."""
    counter = PresenceCounter(max_batches=batches)
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
            counter.add(group.locations.numpy().view(np.uint64), group.query_ids.numpy().astype(np.uint32))
    return counter


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
    axes.set_xlabel("rows in R")
    axes.set_ylabel("cost a step")
    axes.legend()
    figure.savefig(path)
