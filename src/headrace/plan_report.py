"""Plans of a dataset: made, summed up, drawn."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from headrace.cli_report import note
from headrace.formats.reader import RowReader
from headrace.indexed_stream import indexed_batches
from headrace.ingest.data_loader import DataLoader
from headrace.ingest.plan.capacity import CapacityError, RowsNeeded
from headrace.ingest.plan.plan_file import PlanSequence
from headrace.ingest.step_plan import StepPlan


class Planned(NamedTuple):
    """Plans, and, of each row layout, why fewer rows are pinned than were asked for (None: they are not)."""

    plans: PlanSequence
    why_fewer_hot: tuple[str | None, ...]


def planned(
    reader: RowReader[Any, Any],
    *,
    window: int,
    capacity: int | None,
    hot_rows: int | Literal["auto"],
    batch_size: int,
    num_workers: int,
) -> Planned:
    """Plan one pass over what `reader` reads. ValueError if there is no row, if the plans are of two runs (a later
    batch did not fit beside the pinned rows), or if the capacity is too small, for which all is read once more, to say
    what would do."""
    plans, unique = [], []
    small = None
    with DataLoader(
        reader,
        schema=reader.schema,
        window=window,
        capacity=capacity,
        hot_rows=hot_rows,
        batch_size=batch_size,
        num_workers=num_workers,
    ) as loader:
        try:
            for batch in loader:
                if batch.plan is None:
                    raise RuntimeError("the loader gave a batch without a plan")
                plans.append(batch.plan)
                unique.append([group.locations.numpy().view(np.uint64) for group in batch.groups])
        except CapacityError as error:
            small = error
        why_fewer_hot = loader.why_fewer_hot
    if small is not None:
        note("the capacity is too small", "reading on, without planning, to say what the whole stream needs")
        raise _too_small(small, reader, batch_size=batch_size, num_workers=num_workers) from small
    if len({plan.run for plan in plans}) > 1:
        raise ValueError(
            "a batch did not fit beside the pinned rows, so that a second run began: lower --hot-rows (0 pins none), "
            "or raise --capacity"
        )
    return Planned(PlanSequence.of(plans, unique), why_fewer_hot)


def fewer_hot_rows(found: Planned, asked: int | Literal["auto"]) -> dict[str, Any] | None:
    """Of each row layout the rows asked for, given (pinned), and why not as many; None where as many are."""
    if not any(found.why_fewer_hot):
        return None
    return {"asked": asked, "given": list(found.plans.r_rows), "why": list(found.why_fewer_hot)}


def _too_small(error: CapacityError, reader: RowReader[Any, Any], *, batch_size: int, num_workers: int) -> ValueError:
    """What the arenas need for all of a stream, of which `error` knows a part."""
    schema = reader.schema
    needs = [RowsNeeded() for _ in schema.groups]
    steps = 0
    for batch in indexed_batches(reader, batch_size=batch_size, num_workers=num_workers):
        steps += 1
        for need, (locations, _) in zip(needs, batch, strict=True):
            need.add(locations)
    each = ""
    if len(needs) > 1:
        layouts = zip(schema.groups, needs, strict=True)
        told = (f"{schema.layout_in_words(g)}: {n.rows_needed} and {n.rows_never_late}" for g, n in layouts)
        each = f" ({'; '.join(told)})"
    return ValueError(
        f"the arena has {error.capacity} rows; for the whole stream of {steps} steps at least "
        f"{max(need.rows_needed for need in needs)} are needed, and {max(need.rows_never_late for need in needs)} so "
        f"that no row is late for lack of room, none pinned{each}: raise --capacity, or make --batch-size smaller"
    )


def step_rows(plans: PlanSequence) -> list[dict[str, Any]]:
    """What each step does, in rows and bytes, over all row layouts."""
    return [_step_row(plan) for plan in plans.plans]


def _step_row(plan: StepPlan) -> dict[str, Any]:
    groups = plan.groups
    requested = sum(g.requested for g in groups)
    return {
        "step": plan.step,
        "requested": requested,
        "hits": sum(g.hits for g in groups),
        "late": sum(len(g.late.fetch_slots) for g in groups),
        "ahead": sum(len(g.ahead.fetch_slots) for g in groups),
        "evicted": sum(len(m.evict_slots) for g in groups for m in (g.late, g.ahead)),
        "resident": sum(g.resident for g in groups),
        "bytes_fetched": plan.bytes_fetched,
        "bytes_written_back": plan.bytes_written_back,
    }


def summary(plans: PlanSequence) -> dict[str, Any]:
    """Sums over the run; `hit_rate` and `early_share` as in `headrace bench plan`, `capacity` and `r_rows` of each row
    layout."""
    rows = step_rows(plans)
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key != "step"}
    fetched = total["late"] + total["ahead"]
    return {
        "steps": len(rows),
        "window": plans.window,
        "capacity": list(plans.capacity),
        "r_rows": list(plans.r_rows),
        "requested": total["requested"],
        "fetched": fetched,
        "evicted": total["evicted"],
        "hit_rate": total["hits"] / max(total["requested"], 1),
        "early_share": total["ahead"] / max(fetched, 1),
        "peak_resident": max(row["resident"] for row in rows),
        "bytes_fetched": total["bytes_fetched"],
        "bytes_written_back": total["bytes_written_back"],
        "digest": plans.digest(),
    }


def draw(plans: PlanSequence, path: str) -> None:
    """Residency, hit rate and bytes a step, over the steps; needs matplotlib (extra `bench`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("--plot needs matplotlib: pip install 'headrace[bench]'") from error
    rows = step_rows(plans)
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(8, 7), layout="constrained")
    residency, rate, moved = figure.subplots(3, sharex=True)
    residency.plot(steps, [row["resident"] for row in rows])
    residency.axhline(sum(plans.capacity), linestyle=":", color="grey")
    residency.set_ylabel("rows in the arena")
    rate.plot(steps, [row["hits"] / max(row["requested"], 1) for row in rows])
    rate.set_ylabel("hit rate")
    for key in ("bytes_fetched", "bytes_written_back"):
        moved.plot(steps, [row[key] / 1e6 for row in rows], label=key.replace("_", " "))
    moved.set_ylabel("MB a step")
    moved.set_xlabel("step")
    moved.xaxis.get_major_locator().set_params(integer=True)
    moved.legend()
    figure.savefig(path)
