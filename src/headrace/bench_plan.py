"""`headrace bench plan`: the window planner on a generated stream."""

from __future__ import annotations

from itertools import islice
from typing import Any

from headrace.ingest.plan.bench import measure
from headrace.ingest.plan.capacity import CapacityError
from headrace.ranks_trace import indexed_preset


def bench_plan(
    preset: str,
    *,
    batch_size: int,
    window: int,
    capacity_share: float,
    steps: int,
    warm_up: int,
    numpy: bool,
    curve: bool,
    seed: int,
    history: int = 0,
) -> dict[str, Any]:
    """Plan a generated stream of `preset`, all its tables in one row layout; indexing is not measured.

    `history` batches are indexed before those that are planned, so that the index is as old as in a later epoch: the
    window then uses few rows of each neighbourhood of locations (`rows_in_eight`).
    """
    stream = indexed_preset(
        preset, batch_size=batch_size, num_batches=history + window + warm_up + steps, num_workers=1, seed=seed
    )
    batches = [locations for locations, _ in islice(stream, history, None)]
    options: dict[str, Any] = {"window": window, "warm_up": warm_up, "numpy": numpy, "curve": curve}
    try:
        report = measure(batches, capacity_share=capacity_share, **options)
    except CapacityError as error:
        raise ValueError(f"--capacity-share {capacity_share:g} is too small: {error}") from error
    return {"preset": preset, "batch_size": batch_size, "history": history, **report}
