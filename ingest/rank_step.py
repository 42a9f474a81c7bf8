"""A step over several ranks, as data: which rows this rank gets from whom, and which it gives to whom.

Of each row layout a rank's unique rows lie in its *inbox*: those that come early (during the step before) by owner,
then those that come late (after the updates of the step before) by owner. Gradients go back owner after owner, in the
order of the batch's unique rows. What a rank owns of the step are the rows that any rank asks it for, each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headrace.ingest.step_plan import I64, U32, U64, Bool, FetchKeys

_Scalar = TypeVar("_Scalar", bound=np.generic)


def by_rank(rows: npt.NDArray[_Scalar], counts: I64) -> list[npt.NDArray[_Scalar]]:
    """Views of the rows of rank 0, then those of rank 1, ...; `counts` int64 [W] says how many each has."""
    ends = np.cumsum(counts).tolist()
    return [rows[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]


@dataclass(frozen=True)
class OwnedRows:
    """The D rows of one layout that this rank owns and any rank asks for, and who asks for which.

    =================== ============== ===========================================================================
    `locations`         uint64 [D]     where they live here; ABSENT where evaluation met a key without a row
    `keys`              FetchKeys [D]  what they are
    `asked`             int64 [N]      positions in them of what rank 0 asks for, then rank 1, ...
    `asked_counts`      int64 [W]      how many each rank asks for
    `early`             bool [D]       no rank uses the row at the two steps before: it can be sent during the last
    `positions`,        int64 [N],     transpose of `asked`: row d is asked for at
    `position_offsets`  int64 [D + 1]  positions[position_offsets[d]:position_offsets[d + 1]], in the order of ranks
    =================== ============== ===========================================================================
    """

    locations: U64
    keys: FetchKeys
    asked: I64
    asked_counts: I64
    early: Bool
    positions: I64
    position_offsets: I64

    @cached_property
    def asked_of_rank(self) -> list[I64]:
        """For each rank the positions of the rows that it asks for."""
        return by_rank(self.asked, self.asked_counts)

    def to_send(self, *, early: bool) -> list[I64]:
        """For each rank the positions of the rows that go to it early, or late, in its order."""
        return [asked[self.early[asked] == early] for asked in self.asked_of_rank]


@dataclass(frozen=True)
class HotRows:
    """The rows of R of one layout in a step; slots are places among the replicas, the same on all ranks.

    =================== ============= =============================================================================
    `num_slots`         int           replicas that there must be room for
    `unique`, `slots`   int64 [H]     positions of the batch's hot rows in its unique rows, and their slots
    `touched`           int64 [T]     slots that any rank's batch uses, ascending: what is all-reduced
    `touched_tables`    uint32 [T]    uids of their tables
    `own`               int64 [O]     positions in `touched` of the rows that this rank owns
    `own_locations`     uint64 [O]    where they live here
    `own_keys`          FetchKeys [O] what they are
    `entering`          int64 [E]     slots that get another row before this step, owner after owner
    `entering_counts`   int64 [W]     how many come from each owner
    `entering_rows`     uint64 [n],   those that this rank owns: where they live, and what they are
    `entering_keys`     FetchKeys [n]
    =================== ============= =============================================================================
    """

    num_slots: int
    unique: I64
    slots: I64
    touched: I64
    touched_tables: U32
    own: I64
    own_locations: U64
    own_keys: FetchKeys
    entering: I64
    entering_counts: I64
    entering_rows: U64
    entering_keys: FetchKeys


@dataclass(frozen=True)
class UrgentRows:
    """Rows whose gradients cannot wait, since a rank uses them at the very next step or they enter R with it.

    `sent` bool [C] of the rows that this rank asked for, owner after owner; `owned` bool [D] of those it owns.
    """

    sent: Bool
    owned: Bool


@dataclass(frozen=True)
class RankGroup:
    """One row layout's share of a step; C of the U unique rows of the batch are cold (all of them without `hot`).

    ============== ========== ===============================================================================
    `slots`        int64 [U]  place in the inbox of each unique row of the batch; the hot ones are the last
    `order`        int64 [C]  the cold unique rows, owner after owner
    `counts`       int64 [W]  how many each owner has
    `early_counts` int64 [W]  of them, those that come early
    ============== ========== ===============================================================================
    """

    slots: I64
    order: I64
    counts: I64
    early_counts: I64
    owned: OwnedRows
    hot: HotRows | None = None

    @property
    def late_counts(self) -> I64:
        return self.counts - self.early_counts

    @staticmethod
    def of(order: I64, counts: I64, early: Bool, owned: OwnedRows, hot: HotRows | None = None) -> RankGroup:
        """`early` bool [C] in the order of `order`, as the owners said."""
        cold = len(order)
        before = np.zeros(cold + 1, np.int64)  # how many early ones come before each
        np.cumsum(early, out=before[1:])
        slots = np.empty(cold + (0 if hot is None else len(hot.unique)), np.int64)
        slots[order] = np.where(early, before[:-1], np.arange(before[-1], before[-1] + cold) - before[:-1])
        if hot is not None:
            slots[hot.unique] = np.arange(cold, len(slots))
        early_counts = np.diff(before[np.cumsum(counts)], prepend=0)
        return RankGroup(slots, order, counts, early_counts, owned, hot)


@dataclass(frozen=True)
class RankStep:
    """Step `step` of run `run`, the same on all ranks, as rank `rank` sees it.

    `rows` int64 [W] are those of each rank's batch, padding aside. With two levels, `groups` is between the ranks of
    this node, of `node_size` ranks: each collects what the node wants of the owners that have its place in their nodes.
    `inner` is between these, one rank of each node; its "batch" are the rows that this rank collects. Counts and lists
    by rank go by places in the node, and by nodes.

    `urgent_before` tells of each layout of the step before which gradients must be there before this one; None: all.
    """

    run: int
    step: int
    rank: int
    rows: I64
    groups: tuple[RankGroup, ...]
    inner: tuple[RankGroup, ...] | None = None
    node_size: int = 1
    urgent_before: tuple[UrgentRows, ...] | None = None

    @property
    def owning(self) -> tuple[RankGroup, ...]:
        """The level whose `owned` are the rows that this rank owns."""
        return self.groups if self.inner is None else self.inner

    @property
    def world_size(self) -> int:
        return len(self.rows)

    @property
    def global_rows(self) -> int:
        """Rows of the step over all ranks."""
        return int(self.rows.sum())

    @property
    def share(self) -> float:
        """This rank's share of them: its weight in a mean over the global batch."""
        return int(self.rows[self.rank]) / self.global_rows if self.global_rows else 0.0

    def row_bytes_sent(self, dims: tuple[int, ...]) -> int:
        """Payload bytes of vectors that this rank sends to others (of two levels: to other nodes), with float32 vectors
        of `dims`."""
        return sum(4 * d * _of_others(g.owned.asked_counts, self._place) for d, g in self._pairs(dims))

    def gradient_bytes_sent(self, dims: tuple[int, ...]) -> int:
        """Payload bytes of gradients that this rank sends to others (of two levels: to other nodes)."""
        return sum(4 * d * _of_others(g.counts, self._place) for d, g in self._pairs(dims))

    @property
    def _place(self) -> int:
        return self.rank if self.inner is None else self.rank // self.node_size

    def _pairs(self, dims: tuple[int, ...]) -> list[tuple[int, RankGroup]]:
        return list(zip(dims, self.owning, strict=True))


def _of_others(counts: I64, here: int) -> int:
    return int(counts.sum() - counts[here])


@dataclass(frozen=True)
class RankSteps:
    """A step, and the one behind it, whose early rows travel while the step runs; None where it is not known."""

    now: RankStep
    following: RankStep | None
