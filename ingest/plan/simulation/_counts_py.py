"""The twin of ``counts.py``: one row, one requester at a time, in sets and dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from headrace.ingest.plan.simulation.counts import BETWEEN, CODES, INSIDE, StepCounts
from headrace.ingest.plan.simulation.links import Topology

Rows = Sequence[set[int]]


def count_step_py(
    now: Rows,
    before: Rows | None,
    after: Rows,
    owner: Sequence[int],
    bins: Sequence[int],
    topology: Topology,
    num_bins: int,
) -> StepCounts:
    """`now`, `before`, `after`: the rows of each rank at three consecutive steps; `before` None: without a window."""
    n, g = topology.ranks, topology.per_node
    shapes = {
        "unique": (n, num_bins), "owned": (n, num_bins), "owned_pair": (n, num_bins),
        "asked": (n, 2, CODES, num_bins), "served": (n, 2, CODES, num_bins),
    }  # fmt: skip
    out = {f.name: np.zeros(shapes.get(f.name, (n, CODES, num_bins)), np.int64) for f in fields(StepCounts)}
    late = set().union(*before) if before is not None else None
    urgent = set().union(*after)

    def code(row: int) -> int:
        return 3 if late is None else (row in late) + 2 * (row in urgent)

    for w, mine in enumerate(now):
        for row in mine:
            o, b, c = owner[row], bins[row], code(row)
            out["unique"][w, b] += 1
            if o == w:
                continue
            place = INSIDE if o // g == w // g else BETWEEN
            out["asked"][w, place, c, b] += 1
            out["served"][o, place, c, b] += 1
            landing = w // g * g + o % g
            if place == BETWEEN and landing != w:
                out["passed_in"][w, c, b] += 1
                out["passed_out"][landing, c, b] += 1
    for node in range(topology.nodes):
        for row in set().union(*now[node * g : (node + 1) * g]):
            o, b, c = owner[row], bins[row], code(row)
            if o // g != node:
                out["landed"][node * g + o % g, c, b] += 1
                out["node_served"][o, c, b] += 1
    for row in set().union(*now):
        out["owned"][owner[row], bins[row]] += 1
    for row in set().union(*now) | urgent:
        out["owned_pair"][owner[row], bins[row]] += 1
    return StepCounts(**out)
