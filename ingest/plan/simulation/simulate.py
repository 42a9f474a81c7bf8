"""N virtual ranks over one trace: every step counted, for every size of R, flat and two-level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.formats.checks import check_integer
from headrace.indexer.indexed import F64, I64, U32, Bool
from headrace.ingest.plan.simulation.counts import StepCounts, count_step, pack_rows, touched
from headrace.ingest.plan.simulation.hot_sizes import Levels, bin_of_counts, presence_counts
from headrace.ingest.plan.simulation.links import LinkModel, Topology
from headrace.ingest.plan.simulation.pooled import PooledStep, row_wise, table_wise
from headrace.ingest.plan.simulation.seconds import all_reduce_seconds, exchange_seconds, row_costs
from headrace.ingest.plan.simulation.trace import Trace
from headrace.ingest.plan.simulation.traffic import (
    EARLY,
    Exchange,
    Reduction,
    all_reduce_bytes,
    cold,
    hot,
    request_bytes,
    rows_exchanged,
    rows_reduced,
)

EXCHANGES: tuple[Exchange, ...] = ("flat", "two_level")
REDUCTIONS: tuple[Reduction, ...] = ("touched", "full")
POINTS = 40
"""Sizes of R on the curve, about."""
MAX_POINTS = 200  # a row's bin is 8 bits


@dataclass(frozen=True)
class Curve:
    """One exchange and one way of reducing R, for each hot set j, float64 [S, N, J] where nothing else is said.

    =================== ==========================================================================================
    `all_to_all`        bytes of rows and gradients that the rank sends
    `all_reduce`        bytes that the rank sends to all-reduce hot rows, [S, J], the same on every rank
    `between`           bytes of both that the rank sends to other nodes
    `requests`          bytes of ids, answers and touch bits that the rank sends ahead of the step
    `seconds`           of the rank on the critical path; a step takes as long as the slowest
    `served`            rows that the rank sends as their owner or passes on
    `early`             share of the rows taken that travel early, [S, J]
    =================== ==========================================================================================
    """

    all_to_all: F64
    all_reduce: F64
    between: F64
    requests: F64
    seconds: F64
    served: F64
    early: F64

    @property
    def step_seconds(self) -> F64:
        """[S, J]"""
        slowest: F64 = self.seconds.max(1)
        return slowest

    @property
    def cost(self) -> F64:
        """Seconds of a step, mean over the steps, [J]."""
        mean: F64 = self.step_seconds.mean(0)
        return mean


@dataclass(frozen=True)
class Simulation:
    """What N ranks did. `levels` [J] and `sizes` [J]: hot set j holds the sizes[j] rows that occur in levels[j] batches
    or more; set 0 is empty. `by_rule[exchange, reduction]`: the set that the threshold rule names.

    `unique`, `owned`, `arena` int64 [S, N, J]: unique cold rows of each rank; distinct cold rows of the owner; rows of
    its arena by exchange: R, own cold rows of a step and the next (so that none is late for lack of room), two inboxes.
    `touched` int64 [S, J]: hot rows that any rank touches. `window_rows` int64 [N]: distinct rows of the owner in the
    `window_steps` steps from the first.
    """

    topology: Topology
    links: LinkModel
    num_batches: int
    levels: I64
    sizes: I64
    by_rule: dict[tuple[Exchange, Reduction], int]
    curves: dict[tuple[Exchange, Reduction], Curve]
    pooled: dict[str, list[PooledStep]]
    unique: I64
    owned: I64
    arena: dict[Exchange, I64]
    touched: I64
    window_rows: I64
    window_steps: int

    @property
    def steps(self) -> int:
        return len(self.unique)

    def optimum(self, exchange: Exchange, reduction: Reduction) -> int:
        """The hot set of least cost; the smallest of them."""
        return int(np.argmin(self.curves[exchange, reduction].cost))


def steps_in(trace: Trace, ranks: int) -> int:
    """Steps of `ranks` ranks that can be counted: those that have a step before and one after."""
    return max(0, trace.num_batches // ranks - 2)


def simulate(
    trace: Trace, *, ranks: int, window: int, links: LinkModel, vector_bytes: int, steps: int, points: int = POINTS
) -> Simulation:
    """Play `ranks` ranks for `steps` steps.

    The trace holds one step more on either side, so that every counted one has neighbours: what is early or urgent
    depends on them. Presence, which orders the rows for R, is that in all these batches. A pure function of its
    arguments. ValueError if the trace is too short, naming the batches that it takes.
    """
    topology = Topology.of(ranks, links)
    check_integer("steps", steps, 1, 1 << 20)
    check_integer("window", window, 0, 1 << 20)
    check_integer("vector_bytes", vector_bytes, 1, 1 << 20)
    check_integer("points", points, 1, MAX_POINTS)
    if steps_in(trace, ranks) < steps:
        raise ValueError(
            f"{steps} steps of {ranks} ranks, one step before and one after take {(steps + 2) * ranks} batches of "
            f"{trace.batch_size} rows; there are {trace.num_batches}"
        )
    batches = trace.rows[: (steps + 2) * ranks]
    counts = presence_counts(batches, trace.num_rows)
    presence = Levels.of(counts, len(batches))
    rules = {
        (e, r): presence.level_by_rule(
            row_costs(vector_bytes, e, links, topology),
            world_size=ranks if e == "flat" else topology.nodes,
            group=1 if e == "flat" else topology.per_node,
            reduce_all=r == "full",
        )
        for e in EXCHANGES
        for r in REDUCTIONS
    }
    levels = presence.examined(points, list(rules.values()))
    sizes = presence.at_least[levels]
    packed = pack_rows(trace.owners(ranks), bin_of_counts(levels, len(batches))[counts])
    del counts
    counted = _Counted(topology, links, vector_bytes, sizes)
    for step in _count_steps(batches, packed, topology, len(levels), window):
        counted.add(step)
    last = min(window, steps) + 1
    seen = touched(list(batches[ranks : (last + 1) * ranks]), trace.num_rows)
    own = (packed[seen] >> np.uint32(16)).astype(np.int64)
    accesses = trace.accesses[ranks : (steps + 1) * ranks].reshape(steps, ranks, -1)
    common = (trace.batch_size, trace.feature_tables, vector_bytes, links, topology)
    return Simulation(
        topology=topology,
        links=links,
        num_batches=len(batches),
        levels=levels,
        sizes=sizes,
        by_rule={key: int(np.searchsorted(sizes, presence.at_least[k])) for key, k in rules.items()},
        curves={key: counted.curve(*key) for key in rules},
        pooled={
            "table_wise": [table_wise(a, *common) for a in accesses],
            "row_wise": [row_wise(a, *common) for a in accesses],
        },
        unique=np.stack(counted.unique),
        owned=np.stack(counted.owned),
        arena={e: counted.arena(e) for e in EXCHANGES},
        touched=np.stack(counted.touched),
        window_rows=np.bincount(own, minlength=ranks),
        window_steps=last,
    )


def _count_steps(
    batches: tuple[U32, ...], packed: U32, topology: Topology, num_bins: int, window: int
) -> Iterator[StepCounts]:
    """Counts of steps 1 .. last but one, and of the last (its ``owned`` and ``asked`` alone mean something: the inbox
    of the step after)."""
    n = topology.ranks
    by_step = [list(batches[t * n : (t + 1) * n]) for t in range(len(batches) // n)]
    before: Bool = touched(by_step[0], len(packed))
    here: Bool = touched(by_step[1], len(packed))
    for t in range(1, len(by_step)):
        after: Bool = touched(by_step[t + 1], len(packed)) if t + 1 < len(by_step) else np.zeros_like(here)
        yield count_step(
            by_step[t], packed, topology, num_bins, here=here, before=before if window else None, after=after
        )
        before, here = here, after


class _Counted:
    """Counts of the steps as they come, in bytes and seconds. The last step added is only the neighbour of the one
    before."""

    def __init__(self, topology: Topology, links: LinkModel, vector_bytes: int, sizes: I64) -> None:
        self._topology, self._links, self._vector, self._sizes = topology, links, vector_bytes, sizes
        self.unique: list[I64] = []
        self.owned: list[I64] = []
        self.touched: list[I64] = []
        self._pair: list[I64] = []
        self._inbox: dict[Exchange, list[I64]] = {e: [] for e in EXCHANGES}
        self._parts: dict[tuple[Exchange, Reduction], list[tuple[F64, ...]]] = {
            (e, r): [] for e in EXCHANGES for r in REDUCTIONS
        }
        self._held: StepCounts | None = None

    def add(self, counts: StepCounts) -> None:
        for e in EXCHANGES:
            self._inbox[e].append(_inbox(counts, e))
        if self._held is not None:
            self._settle(self._held)
        self._held = counts

    def _settle(self, counts: StepCounts) -> None:
        self.unique.append(cold(counts.unique))
        self.owned.append(cold(counts.owned))
        self._pair.append(cold(counts.owned_pair))
        self.touched.append(hot(counts.owned.sum(0)))
        topology, links, v = self._topology, self._links, self._vector
        for e in EXCHANGES:
            rows = rows_exchanged(counts, e)
            exchanged = exchange_seconds(rows, v, e, links, topology)
            all_to_all: F64 = (rows.sent + rows.taken).astype(np.float64) * v
            far: F64 = (rows.out_between + rows.in_between).sum(1).astype(np.float64) * v
            kinds = (rows.in_inside + rows.in_between).sum(0)  # (4, J)
            early = kinds[list(EARLY)].sum(0) / np.maximum(kinds.sum(0), 1)
            for r in REDUCTIONS:
                payload = rows_reduced(counts, self._sizes, r) * v
                reduced = all_reduce_bytes(payload, topology, e)
                self._parts[e, r].append(
                    (
                        all_to_all,
                        reduced.inside + reduced.between,
                        far + reduced.between,
                        request_bytes(rows, self._sizes, topology, r),
                        exchanged + all_reduce_seconds(payload, e, links, topology),
                        rows.sent.astype(np.float64),
                        early,
                    )
                )

    def curve(self, exchange: Exchange, reduction: Reduction) -> Curve:
        return Curve(*(np.stack(part) for part in zip(*self._parts[exchange, reduction], strict=True)))

    def arena(self, exchange: Exchange) -> I64:
        """int64 [S, N, J]"""
        inbox = np.stack(self._inbox[exchange])
        return self._sizes + np.stack(self._pair) + inbox[:-1] + inbox[1:]


def _inbox(counts: StepCounts, exchange: Exchange) -> I64:
    """Cold rows of other owners that a rank holds for a step, int64 [N, J]. Two-level: inside the node they are read
    where they landed, and where their owner has them."""
    if exchange == "two_level":
        return cold(counts.landed.sum(1))
    return cold(counts.asked.sum((1, 2)))
