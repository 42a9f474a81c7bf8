"""Many ranks over one trace: the trace made, each number of ranks played, the results put together."""

from __future__ import annotations

import dataclasses
import resource
import time
from typing import Any

import pyarrow as pa

from headrace.ingest.plan.simulation.links import DEFAULT_LINKS, LinkModel, Topology
from headrace.ingest.plan.simulation.report import by_step_and_rank, summary
from headrace.ingest.plan.simulation.simulate import simulate, steps_in
from headrace.ranks_trace import data_trace, preset_trace


def planned_ranks(
    data: str | list[str] | None,
    *,
    preset: str | None,
    dataset: str,
    ranks: tuple[int, ...],
    links: LinkModel | None,
    seed: int,
    steps: int,
    window: int,
    batch_size: int,
    dim: int,
    labels: bool,
    num_workers: int,
    with_table: bool,
) -> tuple[dict[str, Any], pa.Table | None]:
    """The report, and a table of strategies, steps and ranks. Files that hold fewer than `steps` steps of a number of
    ranks give as many as there are; ValueError if there is none."""
    model = DEFAULT_LINKS if links is None else links
    for n in ranks:
        Topology.of(n, model)  # refused before the trace is made
    num_batches = max(ranks) * (steps + 2)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    stream: dict[str, Any] = {"batch_size": batch_size, "num_batches": num_batches, "num_workers": num_workers}
    if preset is not None:
        trace = preset_trace(preset, seed=seed, **stream)
    elif data is not None:
        trace = data_trace(data, dataset=dataset, labels=labels, **stream)
    else:
        raise ValueError("there is neither data nor a preset")
    traced = time.perf_counter()
    worlds, tables = [], []
    for n in ranks:
        run = simulate(
            trace,
            ranks=n,
            window=window,
            links=model,
            vector_bytes=4 * dim,
            steps=max(1, min(steps, steps_in(trace, n))),
        )
        worlds.append(summary(run))
        if with_table:
            tables.append(by_step_and_rank(run))
    source = {"preset": preset, "seed": seed} if preset else {"data": data, "dataset": dataset}
    report = {
        **source,
        "batch_size": batch_size,
        "dim": dim,
        "window": window,
        "links": dataclasses.asdict(model),
        "trace_batches": trace.num_batches,
        "trace_seconds": traced - begin,
        "simulation_seconds": time.perf_counter() - traced,
        "cpu_seconds": time.process_time() - cpu_begin,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "worlds": worlds,
    }
    return report, pa.concat_tables(tables) if tables else None


def save_table(table: pa.Table) -> bytes:
    """Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


COLUMNS = ("strategy", "ms", "R", "by rule", "MB a node", "MB a rank", "early", "imbalance", "arena rows")


def table_lines(report: dict[str, Any]) -> list[str]:
    """What people read: for each number of ranks one line a strategy."""
    lines = []
    for world in report["worlds"]:
        lines += [
            f"{world['ranks']} ranks on {world['nodes']} node{'s' * (world['nodes'] > 1)}, {world['steps']} steps; "
            f"{world['unique_rows']:,.0f} unique rows a rank",
            _line(COLUMNS),
            *(_line((name, *_cells(found))) for name, found in world["strategies"].items()),
            "",
        ]
    peak = report["peak_rss_bytes"] / 1e9
    took = f"trace {report['trace_seconds']:.0f} s, simulation {report['simulation_seconds']:.0f} s"
    return [*lines, f"{took} ({report['cpu_seconds']:.0f} s of CPU time), {peak:.1f} GB at most"]


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    moved = (found["all_to_all_bytes"] + found.get("all_reduce_bytes", 0.0)) / 1e6
    numbers = (
        f"{found['ms']:.3f}",
        *(f"{found[key]:,}" if key in found else "-" for key in ("r_rows", "r_rows_by_rule")),
        f"{found['between_bytes_a_node'] / 1e6:,.1f}",
        f"{moved:,.1f}",
    )
    if "early_share" not in found:
        return (*numbers, "-", "-", "-")
    return (*numbers, f"{found['early_share']:.2f}", f"{found['served_imbalance']:.2f}", f"{found['arena_rows']:,}")


def _line(cells: tuple[str, ...]) -> str:
    return f"  {cells[0]:<18}" + "".join(f"{cell:>13}" for cell in cells[1:])
