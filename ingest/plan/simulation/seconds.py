"""Time of a step under the link model.

A transfer takes the latency, the messages' cost, and its bytes over the bandwidth, on the slow link of a node (which
its ranks share) and on the fast link of a rank; the two are added up, not overlapped: right where one of them
dominates, and linear, so that costs a row have a meaning. Each link carries both directions at once: the fuller one
counts.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.indexer.cost_curve import RowCosts
from headrace.indexer.indexed import F64
from headrace.ingest.plan.simulation.links import LinkModel, Topology
from headrace.ingest.plan.simulation.traffic import (
    DEFERRED,
    EARLY,
    LATE,
    URGENT,
    Exchange,
    Numbers,
    Rows,
    all_reduce_bytes,
)


def transfer_seconds(between: Numbers, inside: Numbers, links: LinkModel, topology: Topology) -> F64:
    """Seconds of bytes alone for each rank, float64 [N, J]: `between` [N, J] is summed over the node."""
    g = topology.per_node
    by_node = np.repeat(np.add.reduceat(between, np.arange(0, topology.ranks, g), axis=0), g, axis=0)
    seconds: F64 = by_node / links.between.bytes_per_s + inside / links.inside.bytes_per_s
    return seconds


def message_seconds(exchange: Exchange, links: LinkModel, topology: Topology) -> float:
    """Latency of one all-to-all: that of each kind of link, and the cost of each message after the first."""
    n, g, m = topology.ranks, topology.per_node, topology.nodes
    far = n - g if exchange == "flat" else m - 1
    total = 0.0
    for peers, link in ((g - 1, links.inside), (far, links.between)):
        if peers:
            total += (link.latency_us + (peers - 1) * link.message_us) * 1e-6
    return total


def exchange_seconds(rows: Rows, vector_bytes: int, exchange: Exchange, links: LinkModel, topology: Topology) -> F64:
    """Seconds on the critical path of rows and gradients, float64 [N, J]: late rows, urgent gradients, and of early
    rows and deferred gradients what is not hidden. A transfer without any row costs nothing."""
    total = np.zeros((topology.ranks, rows.out_inside.shape[-1]))
    latency = message_seconds(exchange, links, topology)
    for kinds, weight in ((LATE, 1.0), (URGENT, 1.0), (EARLY, 1 - links.overlap), (DEFERRED, 1 - links.overlap)):
        part = [a[:, list(kinds)].sum(1) * vector_bytes for a in (rows.out_between, rows.in_between)]
        near = [a[:, list(kinds)].sum(1) * vector_bytes for a in (rows.out_inside, rows.in_inside)]
        ways = [transfer_seconds(b, i, links, topology) for b, i in zip(part, near, strict=True)]
        seconds = np.maximum(*ways)
        any_row = (seconds > 0).any(0)  # (J)
        total += weight * (seconds + latency * any_row)
    return total


def all_reduce_seconds(payload: Numbers, exchange: Exchange, links: LinkModel, topology: Topology) -> F64:
    """Seconds of an all-reduce of `payload` bytes, float64 [J]: the bytes of a ring, the latency of a tree (as double
    binary trees have them: Sanders, Speck, Träff, "Two-tree algorithms", 2009). Nothing where the payload is 0."""
    g, m = topology.per_node, topology.nodes
    moved = all_reduce_bytes(payload, topology, exchange)
    seconds = moved.between * g / links.between.bytes_per_s + moved.inside / links.inside.bytes_per_s
    rounds = (links.inside.latency_us * _rounds(g) + links.between.latency_us * _rounds(m)) * 1e-6
    total: F64 = np.where(np.asarray(payload) > 0, seconds + rounds, 0.0)
    return total


def row_costs(vector_bytes: int, exchange: Exchange, links: LinkModel, topology: Topology) -> RowCosts:
    """Seconds a row under the model, for the rule of ``indexer/hotset.py``: requested by one rank (flat) or by one node
    (two-level) with evenly loaded owners, there and back, late and early; and all-reduced.

    Flat: g ranks share the slow link, and the owner is on another node with chance (M - 1) / M. Two-level: a row
    crosses once for a node, and all its ranks are taken to ask for it: true of the hot rows that the rule is about.
    """
    n, g, m = topology.ranks, topology.per_node, topology.nodes
    slow, fast = vector_bytes / links.between.bytes_per_s, vector_bytes / links.inside.bytes_per_s
    late = 2 * (slow * (m - 1) / m * (g if exchange == "flat" else 1))
    late += 2 * fast * ((g - 1) / n if exchange == "flat" else (g - 1) / g)
    one = np.array([float(vector_bytes)])
    moved = all_reduce_bytes(one, topology, exchange)
    reduce = float(moved.between[0]) * g / links.between.bytes_per_s
    reduce += float(moved.inside[0]) / links.inside.bytes_per_s
    return RowCosts(c_early=(1 - links.overlap) * late, c_late=late, c_ar=reduce)


def _rounds(members: int) -> int:
    return 2 * math.ceil(math.log2(members)) if members > 1 else 0
