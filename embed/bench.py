"""Time of one training step of the embedding rows, beside the physical limit and what users have at hand.

A step is forward, backward (with a fixed gradient of the output) and update of all touched rows, through autograd, on
batches that are indexed already. All contenders get the same ids and the same gradient, in the same run, turn by turn:
machines are noisy, and figures of different runs do not compare.

The limit is the time that the bytes take which have to move: the output is written and its gradient read (B·F·D floats
each), each unique row is read in the forward, read and written in the update (3·U·D floats), and the batch's indices
are read once; at the speed at which this machine copies large arrays with as many threads, in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.embed.arrays import I64
from headrace.embed.bench_peers import Step, peer_steps
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import OptimizerName, Schema
from headrace.ingest.batch import Batch
from headrace.ingest.step_plan import EMPTY_KEYS, GroupPlan, Movement, StepPlan

COPY_BYTES = 1 << 28
OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "rowwise_adagrad")
LR = 0.01


def measure(
    schemas: Sequence[Schema], batches: Sequence[Sequence[Batch]], *, threads: int, rounds: int, peers: bool
) -> dict[str, Any]:
    """Milliseconds of a step; keys as `headrace bench embed` writes them.

    `batches[k]` are those of `schemas[k]`: the same ids and tables under another optimizer each, one row layout a
    schema, features all pooled by sum.
    """
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measure(schemas, batches, threads, rounds, peers)
    finally:
        torch.set_num_threads(torch_threads)


def _measure(
    schemas: Sequence[Schema], batches: Sequence[Sequence[Batch]], threads: int, rounds: int, peers: bool
) -> dict[str, Any]:
    planned = [[_with_plan(batch, t) for t, batch in enumerate(some)] for some in batches]
    first, dim = batches[0], schemas[0].groups[0].dim
    width = dim * len(schemas[0].sparse)
    grads = [_gradient(batch.num_rows, width) for batch in first]
    names = [schema.groups[0].optimizer for schema in schemas]
    contenders: dict[str, Step] = {
        name: _stage_step(schema, some, grads, threads)
        for name, schema, some in zip(names, schemas, planned, strict=True)
    }
    if peers:
        contenders |= peer_steps(schemas[0], first, grads, lr=LR)
    seconds, copies = _rounds(contenders, len(first), threads, rounds)
    moved = [_bytes(batch, dim, width) for batch in first]
    bandwidth = 2 * COPY_BYTES / median(copies)
    limit_ms = 1e3 * float(np.mean(moved)) / bandwidth
    by_optimizer = {name: _report(seconds[name], limit_ms) for name in names}
    others = {name: 1e3 * median(map(sum, seconds[name])) for name in contenders if name not in names}
    step_ms = by_optimizer[names[0]]["step_ms"]
    return {
        "threads": threads,
        "dim": dim,
        "ids": float(np.mean([_nnz(batch) for batch in first])),
        "unique_rows": float(np.mean([batch.groups[0].num_unique for batch in first])),
        "step_ms": step_ms,
        "limit_ms": limit_ms,
        "ratio_to_limit": step_ms / limit_ms,
        "times_faster_than_best_peer": min(others.values()) / step_ms if others else None,
        "breakdown_ms": by_optimizer[names[0]]["breakdown_ms"],
        "by_optimizer": by_optimizer,
        "peers": {f"{name}_ms": value for name, value in others.items()},
        "bandwidth_gb_per_s": bandwidth / 1e9,
        "limit_bytes": float(np.mean(moved)),
        "rounds": rounds,
        "batches": len(first),
    }


def _report(seconds: Sequence[Sequence[float]], limit_ms: float) -> dict[str, Any]:
    steps = [1e3 * sum(parts) for parts in seconds]
    parts = {name: 1e3 * median(column) for name, column in zip(PARTS, zip(*seconds, strict=True), strict=True)}
    return {
        "step_ms": median(steps),
        "step_ms_best": min(steps),
        "step_ms_worst": max(steps),
        "breakdown_ms": parts,
        "ratio_to_limit": median(steps) / limit_ms,
    }


PARTS = ("forward", "backward", "update")


def _rounds(
    contenders: dict[str, Step], num_batches: int, threads: int, rounds: int
) -> tuple[dict[str, list[Sequence[float]]], list[float]]:
    """Seconds of every step of every contender, and of the copies between them. The first pass is not counted: rows
    come into being, memory is mapped. Nor is the first step of each turn, a repetition of the last batch's: another's
    rows are in the caches, and a core that had nothing to do comes back late (13 ms where the next steps take 7.5).
    """
    seconds: dict[str, list[Sequence[float]]] = {name: [] for name in contenders}
    copies = []
    copy = _copier(threads)
    copy()
    for number in range(rounds + 1):
        for name, step in contenders.items():
            step(num_batches - 1)
            found = [step(i) for i in range(num_batches)]
            seconds[name] += found if number else []
            copies.append(copy())
    return seconds, copies


def _stage_step(schema: Schema, batches: Sequence[Batch], grads: Sequence[Tensor], threads: int) -> Step:
    stage = EmbeddingStage(schema, lr=LR, num_threads=threads)

    def step(i: int) -> Sequence[float]:
        begin = time.perf_counter()
        out = stage(batches[i])
        forward = time.perf_counter()
        out.backward(grads[i])  # type: ignore[no-untyped-call]
        backward = time.perf_counter()
        stage.step(batches[i])
        return forward - begin, backward - forward, time.perf_counter() - backward

    return step


def _copier(threads: int) -> Callable[[], float]:
    """Seconds in which `threads` threads copy COPY_BYTES from one array to another."""
    source, target = np.ones(COPY_BYTES // 8), np.ones(COPY_BYTES // 8)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def copy() -> float:
        begin = time.perf_counter()
        list(pool.map(lambda part: np.copyto(*part), parts))
        return time.perf_counter() - begin

    return copy


def _gradient(num_rows: int, width: int) -> Tensor:
    values = np.random.default_rng(num_rows).standard_normal((num_rows, width), np.float32)
    return torch.from_numpy(values) * 1e-3


def _nnz(batch: Batch) -> int:
    return batch.groups[0].query_ids.numel()


def _bytes(batch: Batch, dim: int, width: int) -> int:
    """Bytes that a step has to move."""
    group = batch.groups[0]
    read = (group.query_ids, group.offsets, group.positions, group.position_offsets, group.locations)
    floats = 2 * batch.num_rows * width + 3 * group.num_unique * dim
    return 4 * floats + sum(tensor.nbytes for tensor in read)


def _with_plan(batch: Batch, step: int) -> Batch:
    """The batch with a plan that moves nothing, as rows that are worked on in their chunks need none."""
    none = np.empty(0, np.int64)
    nothing = Movement(none.view(np.uint64), none, none.view(np.uint64), none, none, none, none)
    parts = tuple(_plan_of(group.num_unique, nothing) for group in batch.groups)
    keys = tuple(EMPTY_KEYS for _ in parts)
    return replace(batch, plan=StepPlan(0, step, 0, parts, tuple(0 for _ in parts), keys, keys))


def _plan_of(num_unique: int, nothing: Movement) -> GroupPlan:
    slots: I64 = np.arange(num_unique)
    mask = np.zeros(num_unique, np.bool_)
    return GroupPlan(slots, mask, mask, nothing, nothing, hits=0, resident=0, capacity=num_unique, r_rows=0)
