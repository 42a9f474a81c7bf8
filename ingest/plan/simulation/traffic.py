"""Bytes of a step: of rows and their gradients, for flat and two-level exchange, and of the hot rows' all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.indexer.indexed import F64, I64
from headrace.ingest.plan.simulation.counts import BETWEEN, INSIDE, StepCounts
from headrace.ingest.plan.simulation.links import Topology

Exchange = Literal["flat", "two_level"]
Reduction = Literal["touched", "full"]
Numbers: TypeAlias = "npt.NDArray[np.floating[Any]] | npt.NDArray[np.integer[Any]]"

ID_BYTES = 8
"""An id that is asked for; its answer is one bit."""

LATE, EARLY, URGENT, DEFERRED = (1, 3), (0, 2), (2, 3), (0, 1)
"""Kinds (see ``counts.CODES``) by what they mean for the row and for its gradient."""


@dataclass(frozen=True)
class Rows:
    """Rows that each rank sends and takes on the links of its node and of other nodes, int64 [N, 4, J] by kind and hot
    set: only rows outside of hot set j count in column j. Gradients of the same rows go the other way."""

    out_inside: I64
    in_inside: I64
    out_between: I64
    in_between: I64

    @property
    def taken(self) -> I64:
        """Rows that each rank takes, int64 [N, J]; gradients that it sends."""
        rows: I64 = (self.in_inside + self.in_between).sum(1)
        return rows

    @property
    def sent(self) -> I64:
        """Rows that each rank sends, int64 [N, J]; gradients that it takes."""
        rows: I64 = (self.out_inside + self.out_between).sum(1)
        return rows


def cold(by_bin: I64) -> I64:
    """Rows outside of each hot set: for set j the bins j and on; last axis bins to sets."""
    outside: I64 = np.flip(np.flip(by_bin, -1).cumsum(-1), -1)
    return outside


def hot(by_bin: I64) -> I64:
    """Rows in each hot set: for set j the bins below j."""
    inside: I64 = by_bin.cumsum(-1) - by_bin
    return inside


def rows_exchanged(counts: StepCounts, exchange: Exchange) -> Rows:
    """Flat: every rank asks every owner by itself. Two-level: what ranks of one node ask of another node crosses once,
    and goes on inside the node from where it landed."""
    if exchange == "flat":
        return Rows(
            out_inside=cold(counts.served[:, INSIDE]),
            in_inside=cold(counts.asked[:, INSIDE]),
            out_between=cold(counts.served[:, BETWEEN]),
            in_between=cold(counts.asked[:, BETWEEN]),
        )
    return Rows(
        out_inside=cold(counts.served[:, INSIDE] + counts.passed_out),
        in_inside=cold(counts.asked[:, INSIDE] + counts.passed_in),
        out_between=cold(counts.node_served),
        in_between=cold(counts.landed),
    )


def rows_reduced(counts: StepCounts, sizes: I64, reduction: Reduction) -> I64:
    """Hot rows that a step all-reduces, int64 [J]: those that any rank touches, or all."""
    return hot(counts.owned.sum(0)) if reduction == "touched" else sizes


@dataclass(frozen=True)
class ReduceBytes:
    """Bytes that each rank sends inside its node and to other nodes to all-reduce, float64 [J]."""

    inside: F64
    between: F64


def all_reduce_bytes(payload: Numbers, topology: Topology, exchange: Exchange) -> ReduceBytes:
    """All-reduce of `payload` bytes [J], as many as a ring needs.

    Flat: a ring over all ranks, node after node; each rank sends 2 (N - 1) / N of the payload, and on each node one of
    its g ranks sends to the next node (several rings take turns), so that a rank's share of the slow link is a g-th.
    Two-level: reduced inside the node, a g-th of it by each rank between the M nodes, spread inside the node.
    """
    n, g, m = topology.ranks, topology.per_node, topology.nodes
    whole = np.asarray(payload, np.float64)
    if exchange == "two_level":
        return ReduceBytes(inside=2 * (g - 1) / g * whole, between=2 * (m - 1) / m / g * whole)
    ring = 2 * (n - 1) / n * whole
    between = ring / g if m > 1 else np.zeros_like(ring)
    return ReduceBytes(inside=ring - between, between=between)


def request_bytes(rows: Rows, sizes: I64, topology: Topology, reduction: Reduction | None) -> F64:
    """Bytes of ids and answers that each rank sends, float64 [N, J], ahead of the step: an id for each row that it
    takes, one bit for each row that it sends, and, where only touched hot rows are reduced, its share of the union of
    the touch bits of R (one bit a hot row, reduced and spread as a ring does)."""
    bits = np.ceil(rows.sent / 8)
    if reduction == "touched":
        bits = bits + 2 * (topology.ranks - 1) / topology.ranks * np.ceil(sizes / 8)
    total: F64 = np.asarray(ID_BYTES * rows.taken + bits, np.float64)
    return total
