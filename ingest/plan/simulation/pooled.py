"""Sharding of pooled vectors, as TorchRec does it: what travels is not rows, but sums of rows of each sample.

Table-wise: a table lives on one rank, which looks up the ids of all ranks and sends back a pooled vector for each
sample and feature. Row-wise: every rank holds a share of each table's rows and sends partial sums, which a
reduce-scatter adds up. Ids are sent one for each access, not once for each row, with 4 bytes of length for each
sample and feature. Gradients go the other way, and nothing of it is early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.indexer.indexed import F64, I64
from headrace.ingest.plan.simulation.links import LinkModel, Topology
from headrace.ingest.plan.simulation.seconds import message_seconds, transfer_seconds
from headrace.ingest.plan.simulation.traffic import ID_BYTES

Sharding = Literal["table_wise", "row_wise"]

LENGTH_BYTES = 4


@dataclass(frozen=True)
class PooledStep:
    """Of each rank, float64 [N]: bytes sent of pooled vectors and their gradients, of them to other nodes, bytes sent
    of ids and lengths, and seconds."""

    vector_bytes: F64
    between_bytes: F64
    request_bytes: F64
    seconds: F64


def place_tables(num_tables: int, topology: Topology) -> I64:
    """Rank of each table: over the nodes first, then over the ranks of a node, so that nodes and ranks hold equally
    many, give or take one; with more ranks than tables some hold none."""
    table = np.arange(num_tables) % topology.ranks
    ranks: I64 = table % topology.nodes * topology.per_node + table // topology.nodes
    return ranks


def table_wise(
    accesses: I64, batch_size: int, feature_tables: Sequence[int], vector: int, links: LinkModel, topology: Topology
) -> PooledStep:
    """`accesses` int64 [N, F]: ids of each rank and feature. Pooled vectors have `vector` bytes."""
    n, g = topology.ranks, topology.per_node
    rank_of = place_tables(max(feature_tables) + 1, topology)[list(feature_tables)]  # (F)
    held = np.bincount(rank_of, minlength=n)  # features that each rank looks up
    by_node = np.repeat(held.reshape(-1, g).sum(1), g)
    pooled = float(batch_size * vector)
    # forward: a rank sends its features to everyone, and takes all others
    out_between, out_inside = held * pooled * (n - g), held * pooled * (g - 1)
    in_between, in_inside = (held.sum() - by_node) * pooled, (by_node - held) * pooled
    one_way = np.maximum(
        transfer_seconds(out_between[:, None], out_inside[:, None], links, topology),
        transfer_seconds(in_between[:, None], in_inside[:, None], links, topology),
    )[:, 0]
    elsewhere = rank_of[None] != np.arange(n)[:, None]  # (N, F)
    asked = ((accesses * ID_BYTES + batch_size * LENGTH_BYTES) * elsewhere).sum(1)
    latency = message_seconds("flat", links, topology) if n > 1 else 0.0
    return PooledStep(
        vector_bytes=out_between + out_inside + in_between + in_inside,
        between_bytes=out_between + in_between,
        request_bytes=asked.astype(np.float64),
        seconds=2 * (one_way + latency),
    )


def row_wise(
    accesses: I64, batch_size: int, feature_tables: Sequence[int], vector: int, links: LinkModel, topology: Topology
) -> PooledStep:
    """Reduce-scatter of the partial sums of all ranks' samples, all-gather of the gradients, both as rings over the
    ranks, node after node: the ring leaves each node once. Of the ids, evenly spread, (N - 1) / N go to other ranks."""
    n, g, m = topology.ranks, topology.per_node, topology.nodes
    one_way = float((n - 1) * batch_size * len(feature_tables) * vector)  # bytes that each rank sends
    rounds = 3 if links.reduce_scatter == "all_reduce" else 2
    between = one_way / g if m > 1 else 0.0  # a rank's share of the node's one edge of the ring
    seconds = one_way / links.between.bytes_per_s if m > 1 else 0.0
    seconds += (one_way - between) / links.inside.bytes_per_s
    latency = message_seconds("flat", links, topology) if n > 1 else 0.0
    ids = accesses.sum(1) * ID_BYTES * (n - 1) / n + (n - 1) * batch_size * len(feature_tables) * LENGTH_BYTES
    return PooledStep(
        vector_bytes=np.full(n, rounds * one_way),
        between_bytes=np.full(n, rounds * between),
        request_bytes=ids,
        seconds=np.full(n, rounds * (seconds + latency)),
    )
