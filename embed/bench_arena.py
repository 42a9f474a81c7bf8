"""Time of training steps in arena mode: rows move as planned, beside the trainer or in its own time, on any device.

A step is forward, a dense model on the pooled features (or a fixed gradient of them), backward, and update. The first
steps fill the arena, and are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from headrace.embed.kernels import KernelsName
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema
from headrace.ingest.batch import Batch

LR = 0.01


def measure_arena(
    schema: Schema,
    batches: Sequence[Batch],
    *,
    device: torch.device,
    kernels: KernelsName | None = None,
    warm_up: int,
    rounds: int,
    hidden: int,
    threads: int,
) -> dict[str, Any]:
    """Milliseconds of a step with and without overlap, in turns; `batches` are planned, `warm_up` of them not counted.

    `hidden` is the width of the dense model's two layers, 0 for none.
    """
    steps: dict[str, list[float]] = {"overlap": [], "inline": []}
    stats: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for name in steps:
            stage = EmbeddingStage(
                schema, lr=LR, mode="arena", overlap=name == "overlap", device=device, kernels=kernels,
                num_threads=threads,
            )  # fmt: skip
            seconds = _one_pass(stage, batches, _make_step(stage, hidden), warm_up)
            steps[name].append(1e3 * seconds / (len(batches) - warm_up))
            stats[name] = stage.stats()
            stage.close()
    counted = batches[warm_up:]
    best = {name: median(values) for name, values in steps.items()}
    return {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "step_ms": best,
        "step_ms_rounds": steps,
        "overlap_speed_up": best["inline"] / best["overlap"],
        "stats": stats,
        "unique_rows": _mean([batch.groups[0].num_unique for batch in counted]),
        "rows_moved": _mean([_rows_moved(batch) for batch in counted]),
        "batches": len(batches),
        "warm_up": warm_up,
        "rounds": rounds,
        "hidden": hidden,
        "threads": threads,
    }


def _one_pass(stage: EmbeddingStage, batches: Sequence[Batch], step: Callable[[Batch], None], warm_up: int) -> float:
    """Seconds of the steps after the first `warm_up`, the device's work included."""
    for batch in batches[:warm_up]:
        step(batch)
    _wait_for(stage.device)
    begin = time.perf_counter()
    for batch in batches[warm_up:]:
        step(batch)
    _wait_for(stage.device)
    return time.perf_counter() - begin


def _make_step(stage: EmbeddingStage, hidden: int) -> Callable[[Batch], None]:
    if hidden == 0:
        gradients: dict[torch.Size, Tensor] = {}
        return lambda batch: _with_fixed_gradient(stage, batch, gradients)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(stage.output_dim, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1),
    ).to(stage.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        loss: Tensor = model(stage(batch)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        stage.step(batch)

    return step


def _with_fixed_gradient(stage: EmbeddingStage, batch: Batch, gradients: dict[torch.Size, Tensor]) -> None:
    """One gradient a shape, made once: fresh memory would cost more than the rest of the step."""
    out = stage(batch)
    if out.shape not in gradients:
        gradients[out.shape] = torch.full_like(out, 1e-3, requires_grad=False)
    out.backward(gradients[out.shape])  # type: ignore[no-untyped-call]
    stage.step(batch)


def _rows_moved(batch: Batch) -> int:
    plan = batch.plan
    if plan is None:
        raise ValueError("a batch without a plan")
    return sum(len(part.fetch_slots) + len(part.evict_slots) for g in plan.groups for part in (g.late, g.ahead))


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
