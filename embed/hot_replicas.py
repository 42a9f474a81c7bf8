"""R on one rank: replicas of the hot rows, equal bit for bit on all ranks.

Before a step, rows that enter R come from their owners, vector and optimizer state. After it the gradients of the rows
that any rank touched are all-reduced, in the order of the ranks, and every rank makes the same update. An owner also
writes its own rows back to where they live at once, so that a row that leaves R is at home, as are all for an
evaluation or a checkpoint.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.embed._rows import SlotRows
from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, U32, U64
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.optimizers import UpdateRule
from headrace.embed.residency import Residency
from headrace.embed.row_keys import RowKeys
from headrace.indexer.exchange.communicator import Communicator
from headrace.ingest.rank_step import HotRows, RankStep
from headrace.ingest.step_plan import FetchKeys


@dataclass
class ReplicaChanges:
    """Rows that entered R on this rank so far; `seconds` until they were all there, waits for other ranks included,
    `bytes_sent` to other ranks: vectors and optimizer state of the rows that this rank owns."""

    changes: int = 0
    rows_entered: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0


class _Homes:
    """Whose row is in each slot of a layout, -1 before the first; of the rows that this rank owns also which."""

    def __init__(self) -> None:
        self.owners = np.empty(0, np.int64)
        self.keys = RowKeys.zeros(0)

    def grow(self, num_slots: int) -> None:
        more = num_slots - len(self.owners)
        if more > 0:
            self.owners = np.concatenate([self.owners, np.full(more, -1)])
            self.keys = self.keys.joined(RowKeys.zeros(more))

    def note(self, hot: HotRows, rank: int) -> None:
        """The rows that enter."""
        ends = np.cumsum(hot.entering_counts)
        self.owners[hot.entering] = np.repeat(np.arange(len(ends)), hot.entering_counts)
        mine = hot.entering[ends[rank] - hot.entering_counts[rank] : ends[rank]]
        self.keys.put(mine, _row_keys(hot.entering_rows, hot.entering_keys))

    def slots_by_owner(self, world_size: int) -> list[I64]:
        """For each rank the slots that hold a row of it, ascending."""
        return [np.flatnonzero(self.owners == rank) for rank in range(world_size)]


class HotReplicas:
    """Replicas float32 [slots, dim + state] of each row layout.

    A row that is replaced at home is another than its replicas: after :meth:`renew` all come anew, before the next one
    is read.
    """

    def __init__(
        self,
        communicator: Communicator,
        stores: Sequence[ChunkStore],
        residency: Residency,
        *,
        frozen: U32,
        threads: Threads | None,
    ) -> None:
        self._communicator = communicator
        self._stores, self._residency = stores, residency
        self._frozen, self._threads = frozen, threads
        self._rows = [np.zeros((0, store.width), np.float32) for store in stores]
        self._homes = [_Homes() for _ in stores]
        self._renews = False
        self.changes = ReplicaChanges()

    @property
    def rows(self) -> list[F32]:
        """The replicas by slot; free slots hold what was there before."""
        return self._rows

    @property
    def are_to_renew(self) -> bool:
        """Whether :meth:`renew` has something to do; the same on all ranks."""
        return not self._renews and any((homes.owners >= 0).any() for homes in self._homes)

    def renew(self) -> None:
        """The rows that replicas are of are about to be replaced at home. On all ranks."""
        self._renews = True

    def begin_run(self) -> None:
        """R of a new run is empty."""
        self._homes = [_Homes() for _ in self._stores]
        self._renews = False

    def enter(self, step: RankStep) -> None:
        """Get the rows that enter R before `step` from their owners."""
        self._bring_up_to_date(step)
        hots = [(g, group.hot) for g, group in enumerate(step.groups) if group.hot is not None]
        entering = [(g, hot) for g, hot in hots if len(hot.entering)]
        if not entering:
            return
        begin, done = time.perf_counter(), self.changes
        for g, hot in entering:
            self._enter(g, hot, step)
            done.rows_entered += len(hot.entering)
            done.bytes_sent += len(hot.entering_rows) * self._stores[g].width * 4 * (step.world_size - 1)
        done.changes += 1
        done.seconds += time.perf_counter() - begin

    def _enter(self, g: int, hot: HotRows, step: RankStep) -> None:
        store = self._stores[g]
        if hot.num_slots > len(self._rows[g]):
            more = np.zeros((hot.num_slots - len(self._rows[g]), store.width), np.float32)
            self._rows[g] = np.concatenate([self._rows[g], more])
        keys = _row_keys(hot.entering_rows, hot.entering_keys)
        by_owner = np.split(hot.entering, np.cumsum(hot.entering_counts)[:-1])
        self._bring(g, by_owner, keys, step, f"the rows that enter R at step {step.step}")
        self._homes[g].grow(len(self._rows[g]))
        self._homes[g].note(hot, step.rank)

    def _bring(self, g: int, by_owner: Sequence[I64], keys: RowKeys, step: RankStep, what: str) -> None:
        """Fill slots with rows from their owners; `keys` are those of this rank, in the order of its slots."""
        store = self._stores[g]
        came = np.empty((sum(map(len, by_owner)), store.width), np.float32)
        parts = np.split(came, np.cumsum([len(slots) for slots in by_owner])[:-1])
        self._residency.flush()
        store.read(*keys, parts[step.rank], threads=self._threads)
        channel = self._communicator.channel("entering", step.run)
        channel.all_to_all([parts[step.rank]] * step.world_size, parts, what)
        self._rows[g][np.concatenate(by_owner)] = came

    def _bring_up_to_date(self, step: RankStep) -> None:
        """What :meth:`renew` has asked for. Replicas of rows that have left R come too, which nobody reads."""
        if not self._renews:
            return
        for g, homes in enumerate(self._homes):
            by_owner = homes.slots_by_owner(step.world_size)
            mine = homes.keys.take(by_owner[step.rank])
            self._bring(g, by_owner, mine, step, f"the rows of R that were replaced before step {step.step}")
            self.changes.bytes_sent += len(mine.locations) * self._stores[g].width * 4 * (step.world_size - 1)
        self._renews = False

    def gather(self, step: RankStep, inbox: Sequence[F32]) -> None:
        """Fill the ends of the inboxes with the hot rows of the batch."""
        for rows, group, box in zip(self._rows, step.groups, inbox, strict=True):
            if group.hot is not None and len(group.hot.slots):
                SlotRows.gather(rows, group.hot.slots, box[len(box) - len(group.hot.slots) :], self._threads)

    def reduce(self, step: RankStep, grads: Sequence[F32 | None]) -> list[F32 | None]:
        """Gradients float32 [touched, dim], of the mean over the global batch, of the rows of each layout that any rank
        touched; the same bits on all ranks. None where there are none."""
        shares = [group.hot for group in step.groups]
        sizes = [0 if hot is None else len(hot.touched) * s.dim for hot, s in zip(shares, self._stores, strict=True)]
        if not sum(sizes):
            return [None] * len(sizes)
        flat = np.zeros(sum(sizes), np.float32)
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        for hot, grad, part, store in zip(shares, grads, parts, self._stores, strict=True):
            if hot is not None and grad is not None and len(hot.slots):
                at = np.searchsorted(hot.touched, hot.slots)
                part.reshape(-1, store.dim)[at] = grad[hot.unique] * np.float32(step.share)
        channel = self._communicator.channel("hot", step.run)
        total = np.split(channel.all_reduce(flat, f"hot gradients of step {step.step}"), np.cumsum(sizes)[:-1])
        pairs = zip(total, self._stores, strict=True)
        return [part.reshape(-1, store.dim) if len(part) else None for part, store in pairs]

    def apply(self, step: RankStep, sums: Sequence[F32 | None], rules: Sequence[UpdateRule]) -> None:
        """One update of every row that any rank touched, with what `reduce` gave."""
        self._bring_up_to_date(step)
        for g, (group, part, rule) in enumerate(zip(step.groups, sums, rules, strict=True)):
            if group.hot is not None and part is not None:
                self._update(g, group.hot, part, rule)

    def own_trained(self, step: RankStep) -> list[I64]:
        """Positions of the touched rows of each layout that this rank owns and that are not frozen."""
        nobody = np.empty(0, np.int64)
        own = [nobody if group.hot is None else group.hot.own for group in step.groups]
        if not len(self._frozen):
            return own
        hots = [group.hot for group in step.groups]
        return [
            rows if hot is None else rows[~np.isin(hot.touched_tables[rows], self._frozen)]
            for rows, hot in zip(own, hots, strict=True)
        ]

    def differing(self, step: RankStep) -> list[int]:
        """Ranks whose replicas are not those of rank 0, bit for bit."""
        held = [0 if group.hot is None else group.hot.num_slots for group in step.groups]
        if not any(held):
            return []
        digest = hashlib.blake2b(digest_size=16)
        for rows, num_slots in zip(self._rows, held, strict=True):
            digest.update(rows[:num_slots].tobytes())
        channel = self._communicator.channel("hot", step.run)
        mine = np.frombuffer(digest.digest(), np.uint8)
        digests = channel.all_gather(mine, f"the digest of its replicas at step {step.step}")
        other: list[int] = np.flatnonzero((digests != digests[0]).any(axis=1)).tolist()
        return other

    def _update(self, g: int, hot: HotRows, grads: F32, rule: UpdateRule) -> None:
        trained = np.ones(len(hot.touched), np.bool_)
        if len(self._frozen):
            trained = ~np.isin(hot.touched_tables, self._frozen)
        slots = hot.touched[trained]
        SlotRows.update(self._rows[g], slots, np.ascontiguousarray(grads[trained]), rule.native, self._threads)
        own = trained[hot.own]
        keys = _row_keys(hot.own_locations, hot.own_keys).take(own)
        self._residency.write(g, keys, self._rows[g][hot.touched[hot.own[own]]])


def _row_keys(locations: U64, keys: FetchKeys) -> RowKeys:
    return RowKeys(locations, keys.ids, keys.tables, keys.missing)
