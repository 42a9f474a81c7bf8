"""Training steps in arena mode over a generated stream, as planned: overlapped and not, on the host or on a GPU.

python benchmarks/stage_arena.py --device cuda --json -
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np
import torch

from headrace.bench import preset_stream, whole_batches
from headrace.cli_embed import bench_schema, indexed_batches
from headrace.embed.bench_arena import measure_arena
from headrace.formats.generate.presets import preset_names
from headrace.formats.schema import OptimizerName
from headrace.ingest.batch import Batch
from headrace.ingest.plan.offline import plan_batches
from headrace.ingest.plan.planner import WindowPlanner
from headrace.ingest.step_plan import EMPTY_KEYS, FetchKeys, GroupPlan, StepPlan


def planned(batches: Sequence[Batch], *, window: int, capacity: int) -> list[Batch]:
    """The batches (of one row layout) with the plans of a run over them."""
    locations = [batch.groups[0].locations.numpy() for batch in batches]
    plans = list(plan_batches(locations, WindowPlanner(window=window, capacity=capacity)))
    return [replace(batch, plan=_step_plan(batches, plans, t, window)) for t, batch in enumerate(batches)]


def _step_plan(batches: Sequence[Batch], plans: Sequence[GroupPlan], t: int, window: int) -> StepPlan:
    ahead = _keys(batches[t + 1], plans[t].ahead.fetch_unique) if t + 1 < len(batches) else EMPTY_KEYS
    late = _keys(batches[t], plans[t].late.fetch_unique)
    return StepPlan(0, t, window, (plans[t],), (0,), (late,), (ahead,))


def _keys(batch: Batch, at: np.ndarray[Any, np.dtype[np.int64]]) -> FetchKeys:
    group = batch.groups[0]
    return FetchKeys(
        group.unique_ids.numpy()[at], group.unique_tables.numpy()[at].astype(np.uint32), group.missing.numpy()[at]
    )


def measure(
    preset: str,
    *,
    batch_size: int,
    batches: int,
    window: int,
    capacity: int | None,
    dim: int,
    optimizer: OptimizerName,
    seed: int,
    device: str,
    threads: int,
    **options: Any,
) -> dict[str, Any]:
    """`capacity` None is twice the rows of the largest two batches that follow each other."""
    torch.set_num_threads(threads)
    stream = preset_stream(preset, seed)
    columns = whole_batches(stream, batches * batch_size, batch_size)
    names = list(stream.preset.sparse)
    schema = bench_schema(names, dim, optimizer, multi_hot=False)
    made = indexed_batches(schema, columns, [[None] * len(names)] * batches, batch_size)
    most = max(batch.groups[0].num_unique for batch in made)
    capacity = 4 * most if capacity is None else capacity
    made = planned(made, window=window, capacity=capacity)
    if device != "cpu":
        made = [batch.pin_memory() for batch in made]
    report = measure_arena(schema, made, device=torch.device(device), threads=threads, **options)
    head = {"preset": preset, "batch_size": batch_size, "window": window, "capacity": capacity, "dim": dim}
    return {**head, "optimizer": optimizer, "cores": len(os.sched_getaffinity(0)), **report}


@click.command()
@click.option("--preset", type=click.Choice(preset_names()), default="criteo-kaggle", show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--batches", type=click.IntRange(2), default=60, show_default=True)
@click.option("--warm-up", type=click.IntRange(0), default=20, show_default=True, help="First batches, not counted.")
@click.option("--window", type=click.IntRange(0), default=20, show_default=True)
@click.option("--capacity", type=click.IntRange(1), help="Rows of the arena.  [default: 4 times those of a batch]")
@click.option("--dim", type=click.IntRange(1, 65_536), default=64, show_default=True)
@click.option("--optimizer", type=click.Choice(["sgd", "rowwise_adagrad", "adagrad", "adam"]), default="sgd")
@click.option("--hidden", type=click.IntRange(0), default=256, show_default=True, help="Dense layers; 0: no model.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--kernels", type=click.Choice(["native", "torch"]), help="[default: by the device]")
@click.option("--threads", type=click.IntRange(1, 256), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--json", "json_path", default="-", help="File of the report, - for stdout.")
def main(preset: str, json_path: str, **options: Any) -> None:
    """Milliseconds of a training step in arena mode, with and without overlap."""
    if options["warm_up"] >= options["batches"]:
        raise click.UsageError("--warm-up leaves no batches to be measured")
    text = json.dumps(measure(preset, **options), indent=2)
    if json_path == "-":
        sys.stdout.write(text + "\n")
    else:
        with open(json_path, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
