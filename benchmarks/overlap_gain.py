"""What fetching and writing back beside the trainer saves of a step, where they are a real share of it.

python benchmarks/overlap_gain.py --json overlap.json

Steps with `overlap=True` and `overlap=False` in turns, on the host. The trainer has one thread first: then the second
core is free for the thread that moves rows, and the gain is that of overlap alone. With as many threads as cores the
trainer uses both, and what the mover does is taken from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import click
import numpy as np
import torch
from stage_arena import planned

from headrace.bench import preset_stream, whole_batches
from headrace.cli_embed import bench_schema, indexed_batches
from headrace.embed.bench_arena import measure_arena
from headrace.formats.generate.presets import preset_names
from headrace.ingest.batch import Batch

COLUMNS = (
    "capacity", "hidden", "threads", "rows_moved", "inline_ms", "overlap_ms", "moving_share", "inline_wait_share",
    "overlap_wait_share", "gain", "gain_least", "gain_most",
)  # fmt: skip


def least_capacity(batches: Sequence[Batch]) -> int:
    """Rows of an arena with which no row is late: those of two batches that follow each other."""
    rows = [batch.groups[0].locations.numpy() for batch in batches]
    return max(len(np.union1d(a, b)) for a, b in pairwise(rows))


def distinct_rows(batches: Sequence[Batch]) -> int:
    return len(np.unique(np.concatenate([batch.groups[0].locations.numpy() for batch in batches])))


def measure(
    preset: str,
    *,
    batch_size: int,
    batches: int,
    warm_up: int,
    window: int,
    dim: int,
    capacity_shares: Sequence[float],
    hidden: Sequence[int],
    threads: Sequence[int],
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """One line of ``table`` for each capacity, dense model and number of trainer's threads.

    A capacity is a share of the window's distinct rows, but at least :func:`least_capacity`. ``moving_share`` is the
    part of an inline step that rows are moved in; ``gain`` = inline_ms / overlap_ms, medians over the rounds, and its
    extremes over single rounds.
    """
    stream = preset_stream(preset, seed)
    names = list(stream.preset.sparse)
    columns = whole_batches(stream, batches * batch_size, batch_size)
    schema = bench_schema(names, dim, "sgd", multi_hot=False)
    made = indexed_batches(schema, columns, [[None] * len(names)] * batches, batch_size)
    least, distinct = least_capacity(made), distinct_rows(made[: max(window, 1)])
    table = []
    for capacity in dict.fromkeys(max(least, round(share * distinct)) for share in capacity_shares):
        with_plans = planned(made, window=window, capacity=capacity)
        for width in hidden:
            for count in threads:
                torch.set_num_threads(count)
                report = measure_arena(
                    schema, with_plans, device=torch.device("cpu"), warm_up=warm_up, rounds=rounds, hidden=width,
                    threads=count,
                )  # fmt: skip
                table.append({"capacity": capacity, **_line(report)})
    return {
        "preset": preset, "batch_size": batch_size, "batches": batches, "warm_up": warm_up, "window": window,
        "dim": dim, "rounds": rounds, "cores": len(os.sched_getaffinity(0)), "window_distinct_rows": distinct,
        "least_capacity": least, "table": table,
    }  # fmt: skip


def _line(report: dict[str, Any]) -> dict[str, Any]:
    inline, overlap = report["stats"]["inline"], report["stats"]["overlap"]
    moving = inline["step_s"]["fetch"] + inline["step_s"]["write_back"]
    each = report["step_ms_rounds"]
    gains = [a / b for a, b in zip(each["inline"], each["overlap"], strict=True)]
    return {
        "hidden": report["hidden"],
        "threads": report["threads"],
        "rows_moved": report["rows_moved"],
        "inline_ms": report["step_ms"]["inline"],
        "overlap_ms": report["step_ms"]["overlap"],
        "moving_share": 1e3 * moving / median(each["inline"]),
        "inline_wait_share": inline["trainer_wait_share"],
        "overlap_wait_share": overlap["trainer_wait_share"],
        "gain": report["overlap_speed_up"],
        "gain_least": min(gains),
        "gain_most": max(gains),
    }


def as_text(table: Sequence[dict[str, Any]]) -> str:
    """The lines of the table, aligned."""
    rows = [COLUMNS, *([f"{line[name]:.2f}".removesuffix(".00") for name in COLUMNS] for line in table)]
    widths = [max(len(row[c]) for row in rows) for c in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


@click.command()
@click.option("--preset", type=click.Choice(preset_names()), default="criteo-kaggle", show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--batches", type=click.IntRange(2), default=40, show_default=True)
@click.option("--warm-up", type=click.IntRange(0), default=15, show_default=True, help="First batches, not counted.")
@click.option("--window", type=click.IntRange(1), default=20, show_default=True)
@click.option("--dim", type=click.IntRange(1, 65_536), default=64, show_default=True)
@click.option("--capacity-shares", default="0,0.1,0.25", show_default=True, help="Of the window's distinct rows.")
@click.option("--hidden", default="0,32", show_default=True, help="Widths of the dense model; 0: none.")
@click.option("--threads", default="1,2", show_default=True, help="Of the trainer.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--json", "json_path", help="Write the report as JSON.")
def main(
    preset: str,
    warm_up: int,
    batches: int,
    capacity_shares: str,
    hidden: str,
    threads: str,
    json_path: str | None,
    **options: Any,
) -> None:
    """Milliseconds of a training step in arena mode, with and without overlap, as a table."""
    if warm_up >= batches:
        raise click.UsageError("--warm-up leaves no batches to be measured")
    shares = [float(part) for part in capacity_shares.split(",")]
    report = measure(
        preset, batches=batches, warm_up=warm_up, capacity_shares=shares, hidden=_numbers(hidden),
        threads=_numbers(threads), **options,
    )  # fmt: skip
    click.echo(as_text(report["table"]))
    if json_path is not None:
        with open(json_path, "w") as file:
            file.write(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
