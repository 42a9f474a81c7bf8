"""PlanWindow: hold the next L batches back, and plan each step exactly before it is handed out."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
from torchdata.nodes import BaseNode

from headrace.formats.checks import check_flag
from headrace.formats.schema import Schema, check_schema
from headrace.indexer.hotset import choose_hot
from headrace.ingest.array_pool import ArrayPool
from headrace.ingest.batch import Batch
from headrace.ingest.engine.checks import check_int, check_timeout_s
from headrace.ingest.engine.errors import add_context
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.engine.state import Snapshot, State
from headrace.ingest.indexed_rows import IndexedRows
from headrace.ingest.nodes.index_ranks import IndexRanks
from headrace.ingest.plan.capacity import CapacityError
from headrace.ingest.plan.planner import WindowPlanner, write_back_horizon
from headrace.ingest.plan.verifier import PlanVerifier
from headrace.ingest.rank_rows import RankRows
from headrace.ingest.step_plan import EMPTY_KEYS, I64, U64, FetchKeys, StepPlan

PEEK_ROWS = 1 << 18
"""Rows from which the hot rows are chosen, before batch 0 is planned: more would be held for that alone."""

PEEK_BATCHES = 100
"""Batches from which they are chosen at most; a presence of one half is then known to 0.05 (one standard deviation)."""

PEEK_BATCHES_AT_LEAST = 16
"""Also of batches so large that these hold more than `PEEK_ROWS`: to 0.13."""

DEFAULT_CAPACITY_ROWS = 1 << 20
"""Arena rows of each layout when none are asked for."""

NO_ROWS: U64 = np.empty(0, np.uint64)

ONE_RANK_PIN_COST = 0.5
"""Price of pinning a row, in late fetches a batch: with one rank nothing is all-reduced, but a pinned row takes a slot
at every step, so it should be used at least every other step."""

_RUNS = itertools.count(1)


@dataclass(frozen=True)
class PlannedRows:
    """A step that is planned and not yet a batch; `following` is the next one, where it is known (to all ranks)."""

    rows: IndexedRows | RankRows
    plan: StepPlan
    following: IndexedRows | RankRows | None

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def to_batch(self, pool: ArrayPool | None = None) -> Batch:
        """As the trainer receives it, in memory of `pool`; by any thread."""
        return self.rows.to_batch(self.plan, self.following, pool)


class PlanWindow(Node[Batch]):
    """Plan each step of a stream of indexed rows over a window of the next `window` batches.

    One :class:`WindowPlanner` a row layout, each with an arena of `capacity` rows. Step t is planned when batch
    t + window has been indexed, or the stream has ended: the last batches are planned over what is left, none is
    dropped. An error of the source is raised at its place in the stream, after the batches before it.

    `hot_rows` rows of each layout are pinned in the arena's R chunk: those present in most of the first batches, which
    are buffered for it (:data:`PEEK_ROWS` and its kin say how many). Fewer are, without a warning, where the arena
    holds fewer beside the largest of those batches, or where they have no more; :attr:`why_fewer_hot` says so. "auto"
    takes the rows that the threshold rule of :func:`headrace.indexer.hotset.choose_hot` names, at most half of the
    arena. Pinned rows never make a stream unplannable: where a later batch does not fit beside them, a new run of the
    planners begins without any. A batch that does not fit into the arena at all raises CapacityError, after the batches
    before it.

    Over ranks (:class:`RankRows`) the plan is that of the rows which this rank owns and any rank uses.

    A live stream has no known future: with `idle_s`, and a :class:`Prefetch` as the source, the batches that are held
    are handed out when nothing came for so long, planned as if the stream ended there; what comes later begins a new
    run of the planners. Plans then depend on when batches came, the trained parameters do not. With nothing held, the
    node waits for the source. Over ranks, each idles by itself; where one of them hands out a step without knowing the
    next one, all take it for unknown in what they send each other.

    With ``verify=True`` every plan is proved by :class:`PlanVerifier` before it is handed out; a violation raises.
    """

    def __init__(
        self,
        source: BaseNode[IndexedRows] | BaseNode[RankRows],
        schema: Schema,
        *,
        window: int,
        capacity: int | None = None,
        hot_rows: int | Literal["auto"] = "auto",
        verify: bool = False,
        idle_s: float | None = None,
    ) -> None:
        super().__init__(source)
        self.idle_s = check_timeout_s(self.name, "idle_s", idle_s)
        self._ranks: IndexRanks | None = None
        if idle_s is not None and not isinstance(source, Prefetch):
            raise TypeError(f"{self.name}: idle_s takes a Prefetch as the source, got {type(source).__name__}")
        if isinstance(source, Prefetch):
            self._ranks = next((node for node in source._upstream() if isinstance(node, IndexRanks)), None)
        check_schema(schema)
        check_flag("verify", verify)
        self.schema = schema
        self.window = check_int(self.name, "window", window, minimum=0)
        rows = DEFAULT_CAPACITY_ROWS if capacity is None else capacity
        self.capacity = check_int(self.name, "capacity", rows, minimum=1)
        is_auto = isinstance(hot_rows, str) and hot_rows == "auto"
        self.hot_rows = hot_rows if is_auto else check_int(self.name, 'hot_rows, unless "auto",', hot_rows, minimum=0)
        self.verify = verify
        self._forget()

    def _forget(self) -> None:
        self._held: deque[tuple[IndexedRows | RankRows, Snapshot]] = deque()  # read, not yet handed out
        self._source_ended = False
        self._source_error: Exception | None = None
        self._handed_out: Snapshot | None = None
        self._draining = False  # the source idles: hand out what is held before anything is read
        self._drop_run()

    def _drop_run(self) -> None:
        """Forget the planners: the next plan is the first of a new run."""
        self._run = next(_RUNS)
        self._step = 0
        self._unpushed = len(self._held)  # the last so many of them are not yet known to the planners
        self._planning = False
        self._planners: list[WindowPlanner] = []
        self._why_fewer_hot: list[str | None] = []
        self._verifier: PlanVerifier | None = None
        self._refused: CapacityError | None = None  # the next batch to push does not fit

    def _reset(self, state: State | None) -> None:
        self._forget()
        self._reset_source(state)
        self._handed_out = self._source_state()

    def _state(self) -> State:
        return {"source": self._handed_out}

    def _close(self) -> None:
        self._held.clear()
        self._drop_run()

    @property
    def stale_reads(self) -> int:
        """Stale reads that the verifier found in this run (0, or an error was raised)."""
        return self._verifier.stale_reads if self._verifier is not None else 0

    @property
    def why_fewer_hot(self) -> tuple[str | None, ...]:
        """Of each row layout, why this run pins fewer rows than the number `hot_rows`, in words; None: it does not."""
        return tuple(self._why_fewer_hot)

    def _next(self) -> Batch:
        return self._next_step().to_batch()

    def _next_step(self) -> PlannedRows:
        self._fill()
        if not self._held and self._draining:
            self._check_tail()
            self._draining = False
            self._drop_run()
            self._fill()
        if not self._held:
            self._check_tail()
            raise self._source_error or StopIteration
        if self._refused is not None and self._unpushed == len(self._held):
            raise self._refused
        rows, self._handed_out = self._held.popleft()
        following = self._held[0][0] if self._held else None
        plan = self._plan(rows, following)
        self._step += 1
        if self.idle_s is not None and self._ranks is not None and self.window:
            assert isinstance(rows, RankRows)
            if not self._ranks.all_know_next(rows.step.step, following is not None):
                following = None
        return PlannedRows(rows, plan, following)

    def _fill(self) -> None:
        """Read and push until the next step can be planned."""
        if not self._planning:
            self._start()
        while not (self._source_ended or self._draining) and len(self._held) <= self.window:
            self._read_or_drain()
            self._push()  # one by one, while the source works on the next
        self._push()

    def _peek(self) -> None:
        """Read until enough is held to choose from, or the source ends, or idles while something is held."""
        rows = sum(held.num_rows for held, _ in self._held)
        while not (self._source_ended or self._draining) and not _enough(len(self._held), rows):
            before = len(self._held)
            self._read_or_drain()
            rows += sum(held.num_rows for held, _ in islice(self._held, before, None))

    def _read_or_drain(self) -> None:
        if self._idles():
            self._draining = True
        else:
            self._read()

    def _idles(self) -> bool:
        """Whether nothing comes for `idle_s`, and something can be handed out meanwhile."""
        if self.idle_s is None or not self._held:
            return False
        source = self.source
        assert isinstance(source, Prefetch)
        started = time.perf_counter()
        idles = not source.ready(self.idle_s)
        self._meter.wait_in_s += time.perf_counter() - started
        return idles

    def _read(self) -> None:
        try:
            rows = self._pull()
        except StopIteration:
            self._source_ended = True
        except Exception as error:  # an interrupt is no item of the stream: it is raised at once
            self._source_error, self._source_ended = error, True
        else:
            self._held.append((rows, self._source_state()))
            self._unpushed += 1

    def _push(self) -> None:
        """Make known to the planners what the window of the next step contains, and the end of the stream."""
        while self._unpushed and self._refused is None and len(self._held) - self._unpushed <= self.window:
            rows = self._held[len(self._held) - self._unpushed][0]
            try:
                for g, planner in enumerate(self._planners):
                    planner.push(rows.groups[g].locations)
            except CapacityError as error:
                several = len(self._planners) > 1
                layout = self.schema.layout_in_words(self.schema.groups[g])
                self._give_way(rows, error.of_layout(layout) if several else error)
                return
            self._unpushed -= 1
        if self._refused is not None or ((self._source_ended or self._draining) and not self._unpushed):
            for planner in self._planners:
                planner.finish()  # also before a batch that does not fit: the ones before it are still planned

    def _give_way(self, rows: IndexedRows | RankRows, error: CapacityError) -> None:
        """A batch does not fit: without pinned rows it may; else it is refused in its place."""
        if any(planner.r_rows for planner in self._planners):
            self._drop_run()
            self._start(pin=False)
            self._push()
            return
        if rows.num_rows:
            file, row = rows.source.locate(0)
            add_context(error, f"the batch begins at row {row} of {file}")
        self._refused = error
        self._push()

    def _start(self, *, pin: bool = True) -> None:
        """Choose the hot rows from the head of the stream, then start the planners."""
        self._planning = True
        if pin and self.hot_rows != 0:
            self._peek()
        hot = [self._choose_hot(g) if pin else NO_ROWS for g in range(len(self.schema.groups))]
        for g, rows in enumerate(hot):
            self._why_fewer_hot.append(self._fewer_because(g, len(rows), pin=pin))
            planner = WindowPlanner(window=self.window, capacity=self.capacity, r_rows=len(rows))
            planner.set_hot(rows)
            self._planners.append(planner)
        if self.verify:
            self._verifier = PlanVerifier(
                capacity=[self.capacity] * len(hot),
                r_rows=[len(rows) for rows in hot],
                horizon=write_back_horizon(self.window),
                row_bytes=[g.row_bytes for g in self.schema.groups],
            )

    def _choose_hot(self, group: int) -> U64:
        batches = [rows.groups[group].locations for rows, _ in self._held]
        if self.hot_rows == 0 or not batches:
            return NO_ROWS
        return choose_pinned(batches, capacity=self.capacity, hot_rows=self.hot_rows)

    def _fewer_because(self, group: int, given: int, *, pin: bool) -> str | None:
        if isinstance(self.hot_rows, str) or given >= self.hot_rows:
            return None
        if not pin:
            return f"an arena of {self.capacity} rows does not hold a later batch beside them"
        largest = max((len(rows.groups[group].locations) for rows, _ in self._held), default=0)
        if given == room_beside(largest, self.capacity):
            return f"an arena of {self.capacity} rows has no room for more beside a batch of {largest} unique rows"
        return f"they are chosen from the first {len(self._held)} batches, which have no more unique rows"

    def _plan(self, rows: IndexedRows | RankRows, following: IndexedRows | RankRows | None) -> StepPlan:
        groups = tuple(planner.pop() for planner in self._planners)
        plan = StepPlan(
            run=self._run,
            step=self._step,
            window=self.window,
            groups=groups,
            row_bytes=tuple(g.row_bytes for g in self.schema.groups),
            late_keys=_keys(rows, [g.late.fetch_unique for g in groups]),
            ahead_keys=_keys(following, [g.ahead.fetch_unique for g in groups]),
        )
        if self._verifier is not None:
            self._verifier.assert_valid(plan, [g.locations for g in rows.groups], rows.unique_keys())
        return plan

    def _check_tail(self) -> None:
        if self._verifier is not None and self._source_error is None:
            self._verifier.assert_finished(self._step)


class PlanSteps(PlanWindow):
    """`PlanWindow` whose items are :class:`PlannedRows`, for a node that makes batches of them; the same in states."""

    @property
    def name(self) -> str:
        return str(PlanWindow.__name__)

    def _next(self) -> PlannedRows:  # type: ignore[override]
        return self._next_step()


def _enough(batches: int, rows: int) -> bool:
    """Whether so many batches, of so many rows together, are enough to choose hot rows from."""
    return batches >= PEEK_BATCHES or (batches >= PEEK_BATCHES_AT_LEAST and rows >= PEEK_ROWS)


def choose_pinned(batches: Sequence[U64], *, capacity: int, hot_rows: int | Literal["auto"]) -> U64:
    """Locations to pin, most often present first, ties by location.

    Pure function of the unique locations of the head of the stream. The pinned rows leave room for the largest batch
    seen, so that pinning makes no stream unplannable that was plannable without it (later batches may be larger; then
    the planner's error says how many rows are needed).
    """
    locations, counts = _presence(batches)
    most = room_beside(max(len(b) for b in batches), capacity)
    if hot_rows == "auto":
        hot = choose_hot(counts / len(batches), world_size=1, c_early=0.0, c_late=1.0, c_ar=ONE_RANK_PIN_COST)
        most = min(most, capacity // 2, int(hot.sum()))
    else:
        most = min(most, hot_rows)
    order = np.argsort(-counts, kind="stable")  # of ascending locations: ties keep their order
    return locations[order[:most]]


def room_beside(largest: int, capacity: int) -> int:
    """Rows that can be pinned so that a batch of `largest` unique rows still fits, whichever they are."""
    return max(0, capacity - largest)


def _presence(batches: Sequence[U64]) -> tuple[U64, I64]:
    """(distinct locations, uint64 [N], ascending; how many of the batches contain each, int64 [N])."""
    rows = np.sort(np.concatenate(batches))
    begins = np.flatnonzero(np.concatenate([[len(rows) > 0], rows[1:] != rows[:-1]]))
    return rows[begins], np.diff(begins, append=len(rows))


def _keys(rows: IndexedRows | RankRows | None, fetched: Sequence[I64]) -> tuple[FetchKeys, ...]:
    if rows is None:
        return tuple(EMPTY_KEYS for _ in fetched)
    return tuple(rows.keys_of(g, unique) for g, unique in enumerate(fetched))
