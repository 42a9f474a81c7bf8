"""Who asks whom for how many rows in a step, for all sizes of R at once. Twin: ``_counts_py.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer.indexed import I64, U32, Bool
from headrace.ingest.plan.simulation.links import Topology

CODES = 4
"""Kinds of a row at a step: 1 if it is late (some rank touched it a step before), plus 2 if its gradient is urgent
(some rank touches it a step after)."""

INSIDE, BETWEEN = 0, 1

_OF_NODE = ("unique", "asked", "landed", "passed_in", "passed_out")  # of the node's ranks
_OF_OWNERS = ("served", "node_served")  # of all ranks, towards this node


@dataclass(frozen=True)
class StepCounts:
    """Rows by rank, kind (`CODES`) and bin, int64; a row of bin b is hot in the sets b + 1 and on.

    =============== ============== ==============================================================================
    `unique`        [N, K]         unique rows of the rank's batch
    `asked`         [N, 2, 4, K]   rows that the rank asks of other ranks of its node, of other nodes
    `served`        [N, 2, 4, K]   rows that the rank, as their owner, sends to ranks of its node, of other nodes
    `landed`        [N, 4, K]      two-level: rows of other nodes' owners that land at the rank for its node
    `node_served`   [N, 4, K]      two-level: rows that the rank, as their owner, sends to other nodes, once to each
    `passed_in`     [N, 4, K]      two-level: rows that the rank takes from where they landed, not its own landing
    `passed_out`    [N, 4, K]      two-level: rows that the rank passes on to others of its node
    `owned`         [N, K]         distinct rows of the owner that any rank touches
    `owned_pair`    [N, K]         the same of this step and the next together
    =============== ============== ==============================================================================

    A row of owner o lands, on a node that asks for it, at the rank with o's number in its own node.
    """

    unique: I64
    asked: I64
    served: I64
    landed: I64
    node_served: I64
    passed_in: I64
    passed_out: I64
    owned: I64
    owned_pair: I64


def pack_rows(owners: npt.NDArray[np.uint16], bins: npt.NDArray[np.uint8]) -> U32:
    """One word a row: owner 16 bits | bin 8 | kind 8 (0 yet)."""
    packed: U32 = owners.astype(np.uint32) << np.uint32(16)
    packed |= bins.astype(np.uint32) << np.uint32(8)
    return packed


def touched(rows: list[U32], num_rows: int) -> Bool:
    """Which rows any of the batches holds, bool [num_rows]."""
    flags = np.zeros(num_rows, np.bool_)
    for batch in rows:
        flags[batch] = True
    return flags


def count_step(
    rows: list[U32], packed: U32, topology: Topology, num_bins: int, *, here: Bool, before: Bool | None, after: Bool
) -> StepCounts:
    """Count one step: `rows` of each rank, `packed` by row number, and which rows any rank touches at this step, the
    one before (None: without a window nothing is early, so all is late and urgent), and the one after."""
    words = packed.copy()
    words |= np.uint8(3) if before is None else before.view(np.uint8)
    if before is not None:
        words |= after.view(np.uint8) << np.uint8(1)
    parts: dict[str, Any] = {name: [] for name in _OF_NODE} | dict.fromkeys(_OF_OWNERS, 0)
    for node in range(topology.nodes):
        found = _count_node(rows, words, topology, num_bins, node)
        for name in _OF_NODE:
            parts[name].append(found[name])
        for name in _OF_OWNERS:
            parts[name] = parts[name] + found[name]
    for name in _OF_NODE:
        parts[name] = np.concatenate(parts[name])
    return StepCounts(
        **parts,
        owned=_by_owner(packed[here], topology, num_bins),
        owned_pair=_by_owner(packed[here | after], topology, num_bins),
    )


def _by_owner(words: U32, topology: Topology, num_bins: int) -> I64:
    """Rows of each owner and bin, int64 [N, K]."""
    key = (words >> np.uint32(16)).astype(np.int64) * num_bins + ((words >> np.uint32(8)) & np.uint32(255))
    return np.bincount(key, minlength=topology.ranks * num_bins).reshape(topology.ranks, num_bins)


def _count_node(rows: list[U32], words: U32, topology: Topology, num_bins: int, node: int) -> dict[str, Any]:
    """What the ranks of one node ask, [g, ...], and what owners send to it, [N, ...]."""
    g, ranks = topology.per_node, topology.ranks
    mine = rows[node * g : (node + 1) * g]
    every = np.concatenate(mine)
    word = words[every]  # (entries of the node's ranks)
    owner = (word >> np.uint32(16)).astype(np.int64)
    bins = ((word >> np.uint32(8)) & np.uint32(255)).astype(np.int64)
    kind = (word & np.uint32(255)) * num_bins + bins  # code and bin as one number
    who = np.repeat(np.arange(g), [len(r) for r in mine])  # number in the node
    wide = CODES * num_bins

    unique = np.bincount(who * num_bins + bins, minlength=g * num_bins).reshape(g, num_bins)
    other = owner != node * g + who
    owner, kind, who = owner[other], kind[other], who[other]
    place = (owner // g != node).astype(np.int64)
    asked = _table((who * 2 + place) * wide + kind, (g, 2, CODES, num_bins))
    served = _table((owner * 2 + place) * wide + kind, (ranks, 2, CODES, num_bins))

    landing = owner % g
    passed = (place == BETWEEN) & (landing != who)
    passed_in = _table(who[passed] * wide + kind[passed], (g, CODES, num_bins))
    passed_out = _table(landing[passed] * wide + kind[passed], (g, CODES, num_bins))

    word = words[_distinct(every)]
    owner = (word >> np.uint32(16)).astype(np.int64)
    kind = (word & np.uint32(255)) * num_bins + ((word >> np.uint32(8)) & np.uint32(255)).astype(np.int64)
    far = owner // g != node
    owner, kind = owner[far], kind[far]
    landed = _table((owner % g) * wide + kind, (g, CODES, num_bins))
    node_served = _table(owner * wide + kind, (ranks, CODES, num_bins))
    return {
        "unique": unique,
        "asked": asked,
        "served": served,
        "landed": landed,
        "node_served": node_served,
        "passed_in": passed_in,
        "passed_out": passed_out,
    }


def _table(keys: I64, shape: tuple[int, ...]) -> I64:
    return np.bincount(keys, minlength=int(np.prod(shape))).reshape(shape)


def _distinct(rows: U32) -> U32:
    ordered = np.sort(rows)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
