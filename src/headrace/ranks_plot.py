"""The picture of a `headrace plan --ranks` report: bytes and time against R and against N."""

from __future__ import annotations

import math
from typing import Any

from headrace.bench_plot import require_matplotlib

__all__ = ["plot_ranks", "require_matplotlib"]

CURVES = {
    "full_flat": ("all of R reduced, flat", "C3", "-"),
    "touched_flat": ("touched rows reduced, flat", "C0", "-"),
    "full_two_level": ("all of R reduced, two-level", "C3", "--"),
    "touched_two_level": ("touched rows reduced, two-level", "C0", "--"),
}
LINES = {
    "no_r_flat": ("no R, flat", "C2", "-"),
    "no_r_two_level": ("no R, two-level", "C2", "--"),
    "table_wise": ("pooled, table-wise", "0.5", "-"),
    "row_wise": ("pooled, row-wise", "0.5", "--"),
}


def plot_ranks(report: dict[str, Any], path: str) -> None:
    """For each number of ranks a column: time and bytes over the slow link of a node against R, optima marked; with
    several numbers one more column, both against N, each strategy at its best R."""
    from matplotlib.figure import Figure

    worlds = report["worlds"]
    wide = len(worlds) + (len(worlds) > 1)
    figure = Figure(figsize=(3.6 * wide + 0.6, 6.4), layout="constrained")
    axes = figure.subplots(2, wide, squeeze=False)
    for column, world in enumerate(worlds):
        _against_r(axes[0][column], axes[1][column], world)
    if len(worlds) > 1:
        _against_n(axes[0][-1], axes[1][-1], sorted(worlds, key=lambda world: int(world["ranks"])))
    for row in axes:
        for axis in row:
            axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("ms a step")
    axes[1][0].set_ylabel("bytes a step that a node sends\n(where there is one node: a rank)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=80)


def _against_r(time: Any, moved: Any, world: dict[str, Any]) -> None:
    curves, strategies = world["curves"], world["strategies"]
    sizes = curves["r_rows"]
    g = world["ranks"] // world["nodes"]
    best = min(strategies[name]["ms"] for name in (*CURVES, *LINES) if name in strategies)
    for name, (label, colour, style) in CURVES.items():
        curve = curves[name]
        time.plot(sizes, curve["ms"], color=colour, linestyle=style, label=label)
        optimum = strategies[name]
        time.plot(optimum["r_rows"], optimum["ms"], color=colour, marker="o", markersize=5)
        key = "between_bytes" if world["nodes"] > 1 else "all_to_all_bytes"
        scale = g if world["nodes"] > 1 else 1
        reduce = curve["all_reduce_bytes"] if world["nodes"] == 1 else [0.0] * len(sizes)
        moved.plot(
            sizes, [scale * a + b for a, b in zip(curve[key], reduce, strict=True)], color=colour, linestyle=style
        )
    for name, (label, colour, style) in LINES.items():
        time.axhline(strategies[name]["ms"], color=colour, linestyle=style, linewidth=1, label=label)
    for axis in (time, moved):
        axis.set(yscale="log", xlabel="rows in R")
        axis.set_xscale("symlog", linthresh=max(sizes[1], 1) if len(sizes) > 1 else 1)
        axis.set_xlim(0, max(sizes[-1], 1))
    time.set_ylim(best * 0.8, best * 30)
    time.set_title(f"{world['ranks']} ranks on {world['nodes']} node{'s' * (world['nodes'] > 1)}")


def _against_n(time: Any, moved: Any, worlds: list[dict[str, Any]]) -> None:
    ranks = [world["ranks"] for world in worlds]
    for name, (_, colour, style) in (CURVES | LINES).items():
        found = [world["strategies"][name] for world in worlds]
        time.plot(ranks, [f["ms"] for f in found], color=colour, linestyle=style, marker=".")
        sent = [f["between_bytes_a_node"] if w["nodes"] > 1 else math.nan for f, w in zip(found, worlds, strict=True)]
        moved.plot(ranks, sent, color=colour, linestyle=style, marker=".")
    time.set_yscale("log")
    moved.set_yscale("log" if any(world["nodes"] > 1 for world in worlds) else "linear")  # NaN has no logarithm
    for axis in (time, moved):
        axis.set(xscale="log", xlabel="ranks")
        axis.set_xticks(ranks, [str(n) for n in ranks])
        axis.minorticks_off()
    time.set_title("each at its best R")
