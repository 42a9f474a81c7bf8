"""A simulation as plain data with stable keys, and as a table of steps and ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.indexer.indexed import F64
from headrace.ingest.plan.simulation.simulate import EXCHANGES, REDUCTIONS, Curve, Simulation
from headrace.ingest.plan.simulation.traffic import Exchange, Reduction


def strategies(run: Simulation) -> list[tuple[str, Exchange, Reduction, int]]:
    """(name, exchange, reduction, hot set): without R, and the best R of each way to reduce it."""
    named: list[tuple[str, Exchange, Reduction, int]] = [(f"no_r_{e}", e, "touched", 0) for e in EXCHANGES]
    named += [(f"{r}_{e}", e, r, run.optimum(e, r)) for e in EXCHANGES for r in REDUCTIONS]
    return named


def summary(run: Simulation) -> dict[str, Any]:
    """Means over steps, and over ranks where nothing else is said; bytes are those that a rank sends in a step."""
    return {
        "ranks": run.topology.ranks,
        "nodes": run.topology.nodes,
        "steps": run.steps,
        "unique_rows": float(run.unique[:, :, 0].mean()),
        "owned_rows": float(run.owned[:, :, 0].mean()),
        "owned_imbalance": _imbalance(run.owned[:, :, 0]),
        "window_rows": int(run.window_rows.max()),
        "window_steps": run.window_steps,
        "strategies": {
            **{name: _strategy(run, e, r, j) for name, e, r, j in strategies(run)},
            **{name: _pooled(run, name) for name in run.pooled},
        },
        "curves": {
            "r_rows": run.sizes.tolist(),
            "touched_rows": run.touched.mean(0).tolist(),
            **{f"{r}_{e}": _curve(run.curves[e, r]) for e in EXCHANGES for r in REDUCTIONS},
        },
        "crossings": crossings(run),
    }


def _strategy(run: Simulation, exchange: Exchange, reduction: Reduction, j: int) -> dict[str, Any]:
    curve, rule = run.curves[exchange, reduction], run.by_rule[exchange, reduction]
    everything = run.unique[:, :, 0].sum()
    found: dict[str, Any] = {"r_rows": int(run.sizes[j])}
    if j or run.optimum(exchange, reduction) == 0:
        found |= {"r_rows_by_rule": int(run.sizes[rule]), "ms_by_rule": float(curve.cost[rule]) * 1e3}
    return found | {
        "ms": float(curve.cost[j]) * 1e3,
        "all_to_all_bytes": float(curve.all_to_all[..., j].mean()),
        "all_to_all_bytes_max": float(curve.all_to_all[..., j].max()),
        "all_reduce_bytes": float(curve.all_reduce[..., j].mean()),
        "request_bytes": float(curve.requests[..., j].mean()),
        "between_bytes_a_node": float(curve.between[..., j].mean()) * run.topology.per_node,
        "served_imbalance": _imbalance(curve.served[..., j]),
        "early_share": float(curve.early[..., j].mean()),
        "hot_share_of_unique_rows": 1.0 - float(run.unique[..., j].sum()) / max(int(everything), 1),
        "arena_rows": int(run.arena[exchange][..., j].max()),
        "ms_by_step": (curve.step_seconds[:, j] * 1e3).tolist(),
    }


def _pooled(run: Simulation, name: str) -> dict[str, Any]:
    steps = run.pooled[name]
    seconds = np.array([step.seconds.max() for step in steps])
    return {
        "ms": float(seconds.mean()) * 1e3,
        "all_to_all_bytes": float(np.mean([s.vector_bytes for s in steps])),
        "all_to_all_bytes_max": float(np.max([s.vector_bytes for s in steps])),
        "request_bytes": float(np.mean([s.request_bytes for s in steps])),
        "between_bytes_a_node": float(np.mean([s.between_bytes for s in steps])) * run.topology.per_node,
        "ms_by_step": (seconds * 1e3).tolist(),
    }


def _curve(curve: Curve) -> dict[str, list[float]]:
    return {
        "ms": (curve.cost * 1e3).tolist(),
        "all_to_all_bytes": curve.all_to_all.mean((0, 1)).tolist(),
        "all_reduce_bytes": curve.all_reduce.mean(0).tolist(),
        "between_bytes": curve.between.mean((0, 1)).tolist(),
        "early_share": curve.early.mean(0).tolist(),
    }


def crossings(run: Simulation) -> list[dict[str, Any]]:
    """Sizes of R, interpolated over the logarithm, at which one curve's time passes another's, or that of a strategy
    without R: `below` is faster for smaller R, `above` for larger."""
    lines = {f"{r}_{e}": run.curves[e, r].cost for e in EXCHANGES for r in REDUCTIONS}
    for e in EXCHANGES:
        lines[f"no_r_{e}"] = np.full(len(run.sizes), run.curves[e, "touched"].cost[0])
    for name, steps in run.pooled.items():
        lines[name] = np.full(len(run.sizes), float(np.mean([s.seconds.max() for s in steps])))
    names = list(lines)
    found = []
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            for at, falls in _crossing(run.sizes, lines[first] - lines[second]):
                below, above = (second, first) if falls else (first, second)
                found.append({"r_rows": at, "below": below, "above": above})
    return found


def _crossing(sizes: npt.NDArray[np.int64], difference: F64) -> list[tuple[int, bool]]:
    """(R, whether the difference falls) where it changes sign; differences of a billionth are none."""
    scale = float(np.abs(difference).max(initial=0.0))
    at = np.flatnonzero(np.abs(difference) > 1e-9 * scale) if scale else np.empty(0, np.int64)
    found = []
    for a, b in pairwise(at):
        if (difference[a] > 0) != (difference[b] > 0):
            share = difference[a] / (difference[a] - difference[b])
            low, high = np.log(sizes[a] + 1), np.log(sizes[b] + 1)
            found.append((round(float(np.exp(low + share * (high - low)))) - 1, bool(difference[a] > 0)))
    return found


def by_step_and_rank(run: Simulation) -> pa.Table:
    """One row a strategy, step and rank: bytes sent, seconds, rows served and owned, arena rows."""
    s, n = run.steps, run.topology.ranks
    shape = (s, n)
    parts: list[pa.Table] = []

    def add(strategy: str, r_rows: int, columns: dict[str, npt.NDArray[Any] | None]) -> None:
        parts.append(
            pa.table(
                {
                    "ranks": pa.array(np.full(s * n, n, np.int32)),
                    "strategy": pa.array([strategy] * (s * n), pa.string()),
                    "r_rows": pa.array(np.full(s * n, r_rows, np.int64)),
                    "step": pa.array(np.repeat(np.arange(s, dtype=np.int32), n)),
                    "rank": pa.array(np.tile(np.arange(n, dtype=np.int32), s)),
                    **{
                        name: pa.nulls(s * n, pa.float64())
                        if values is None
                        else pa.array(np.broadcast_to(values, shape).astype(np.float64).ravel())
                        for name, values in columns.items()
                    },
                }
            )
        )

    for name, e, r, j in strategies(run):
        curve = run.curves[e, r]
        columns: dict[str, npt.NDArray[Any] | None] = {
            "all_to_all_bytes": curve.all_to_all[..., j],
            "all_reduce_bytes": curve.all_reduce[:, j, None],
            "between_bytes": curve.between[..., j],
            "request_bytes": curve.requests[..., j],
            "seconds": curve.seconds[..., j],
            "served_rows": curve.served[..., j],
            "owned_rows": run.owned[..., j],
            "arena_rows": run.arena[e][..., j],
        }
        add(name, int(run.sizes[j]), columns)
    for name, steps in run.pooled.items():
        given = {
            "all_to_all_bytes": np.stack([p.vector_bytes for p in steps]),
            "between_bytes": np.stack([p.between_bytes for p in steps]),
            "request_bytes": np.stack([p.request_bytes for p in steps]),
            "seconds": np.stack([p.seconds for p in steps]),
        }
        add(name, 0, {key: given.get(key) for key in columns})
    return pa.concat_tables(parts)


def _imbalance(values: npt.NDArray[Any]) -> float:
    """Most over mean of the ranks, the mean over the steps of it; 1.0 is best."""
    mean = values.mean(1)
    return float(np.mean(np.where(mean > 0, values.max(1) / np.maximum(mean, 1e-300), 1.0)))
