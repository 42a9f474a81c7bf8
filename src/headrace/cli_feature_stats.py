"""The part of `headrace stats` that looks at each column: cardinality, missing share, top shares, coverage curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.cli_outputs import writable_folder
from headrace.formats.file_reader import FileReader
from headrace.formats.id_counts import DEFAULT_MAX_ENTRIES
from headrace.ingest.feature_stats import feature_stats
from headrace.ingest.nodes.read_rows import ReadRows

_F = TypeVar("_F", bound=Callable[..., Any])
_COLUMNS = ("rows", "missing", "cardinality", "once", "ids/row", "top 1", "top 100", "top 10k", "ids for 90 %")


def feature_options(command: _F) -> _F:
    """``features``, ``feature_rows``, ``max_entries`` and ``plot_features``."""
    for option in (
        click.option(
            "--plot-features",
            metavar="DIR",
            callback=_plot_folder,
            help="Draw the coverage curves: one PNG for all features, and one each.",
        ),
        click.option(
            "--max-entries",
            type=click.IntRange(1),
            default=DEFAULT_MAX_ENTRIES,
            show_default=True,
            help="Distinct ids counted in memory (32 bytes each); the others wait on disk, in TMPDIR.",
        ),
        click.option("--feature-rows", type=click.IntRange(1), help="Rows that columns are counted over.  [all]"),
        click.option("--features/--no-features", default=True, show_default=True, help="Count the ids of each column."),
    ):
        command = option(command)
    return command


def _plot_folder(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Refuse at once, not after an hour of work, what cannot be drawn."""
    if path is not None:
        from headrace.bench_plot import require_matplotlib

        require_matplotlib()
    return writable_folder(ctx, param, path)


def count_features(
    reader: FileReader[Any], *, rows: int | None, max_entries: int, num_workers: int, plot: str | None
) -> dict[str, Any]:
    """The report of every column of a reader's files; curves are drawn into the folder `plot`."""
    node = ReadRows(reader, num_workers=num_workers)
    node.reset(None)
    try:
        report = feature_stats(node, reader.schema, rows=rows, max_entries=max_entries)
    finally:
        node.close()
    if plot is not None:
        plot_features(report, Path(plot))
    return report


def feature_table(report: dict[str, Any]) -> str:
    """Tables for people: sparse columns, then dense ones and labels."""
    lines = []
    if report["sparse"]:
        rows = [("", *_COLUMNS)] + [_sparse_row(report["rows"], feature) for feature in report["sparse"]]
        lines += _aligned(rows)
    numbers = [*report["dense"], *report["labels"]]
    if numbers:
        rows = [("", "missing", "mean", "std", "min", "max")]
        for column in numbers:
            values = (column[key] for key in ("mean", "std", "min", "max"))
            rows.append((column["name"], _share(column.get("missing_share", 0.0)), *map(_number, values)))
        lines += ["", *_aligned(rows)] if lines else _aligned(rows)
    return "\n".join(lines)


def _sparse_row(rows: int, feature: dict[str, Any]) -> tuple[str, ...]:
    top, needed = feature["top_share"], feature["ids_for_share"]
    return (
        feature["name"], f"{rows:,}", _share(feature["missing_share"]), f"{feature['cardinality']:,}",
        f"{feature['seen_once']:,}", _number(feature["ids_per_row"]),
        *(_share(top[k]) if k in top else "" for k in ("1", "100", "10000")),
        f"{needed['0.9']:,}" if needed else "",
    )  # fmt: skip


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def plot_features(report: dict[str, Any], folder: Path) -> None:
    """``coverage.png`` of all features, and ``coverage-NAME.png`` of each."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn = [feature for feature in report["sparse"] if feature["coverage"]]

    def draw(features: list[dict[str, Any]], path: Path) -> None:
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        for feature in features:
            ids, shares = zip(*feature["coverage"], strict=True)
            axes.plot(ids, shares, label=f"{feature['name']} ({feature['cardinality']:,})", marker=".", markersize=2)
        axes.set(xlabel="most frequent ids", ylabel="share of occurrences", xscale="log", ylim=(0, 1.02))
        axes.grid(alpha=0.3)
        if features:
            axes.legend(fontsize="x-small", ncols=2)
        figure.savefig(path, dpi=120)

    draw(drawn, folder / "coverage.png")
    for feature in drawn:
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in feature["name"])
        draw([feature], folder / f"coverage-{name}.png")
