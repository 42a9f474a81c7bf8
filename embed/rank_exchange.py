"""Rows from their owners to the ranks that use them, and gradients back.

Forward of step t, on every rank: the owner moves its arena (if it has one), sends what could not be sent before the
last updates, and then the rows that no rank uses at step t but some at t + 1 go out for t + 1, while the model works.
Received rows lie in one of two inboxes, by the parity of the step. Step t: gradients go to the owners, are added in the
order of the ranks, and each row is updated once, by its owner. Sizes are known from the plan: nothing travels but
vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.embed import _pool
from headrace.embed._rows import RowSource, SlotRows, SlotSource
from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, U32
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.hot_replicas import HotReplicas
from headrace.embed.optimizers import UpdateRule
from headrace.embed.residency import Residency
from headrace.embed.row_keys import RowKeys
from headrace.indexer.exchange.channel import Array, Posted
from headrace.indexer.exchange.communicator import Communicator
from headrace.ingest.rank_step import OwnedRows, RankGroup, RankStep, RankSteps
from headrace.ingest.step_plan import StepPlan


class RankExchange:
    """The exchange of one stage; `stores` and `residency` are those of its row layouts. One caller at a time.

    With `check_every` the replicas of hot rows are compared across ranks after every so many steps.

    State: the step whose early rows are under way, which is the next one if its batch comes next; any other step gets
    all its rows late.
    """

    def __init__(
        self,
        communicator: Communicator,
        stores: Sequence[ChunkStore],
        residency: Residency,
        *,
        frozen: U32,
        threads: Threads | None,
        check_every: int = 0,
    ) -> None:
        self._check_every = check_every
        self._communicator = communicator
        self._dims = tuple(store.dim for store in stores)
        self.hot = HotReplicas(communicator, stores, residency, frozen=frozen, threads=threads)
        self._residency = residency
        self._frozen = frozen
        self._threads = threads
        self._inboxes = [[np.empty((0, dim), np.float32) for dim in self._dims] for _ in range(2)]
        self._run: int | None = None
        self._ahead: tuple[RankStep, list[Posted]] | None = None

    def enter(self, steps: RankSteps, plan: StepPlan | None) -> list[RowSource]:
        """The rows of step ``steps.now``, a source a layout, in the order of the batch's unique rows.

        With a plan (training) the early rows of the following step are sent on their way. All ranks enter alike.
        """
        now = steps.now
        ahead = None
        if plan is not None:
            self._begin(now.run)
            ahead, self._ahead = self._ahead, None
        came_early = ahead is not None and ahead[0] is now
        if plan is not None:
            self._residency.enter(plan, [owned_keys(group.owned) for group in now.groups])
            self.hot.enter(now)
        inbox = self._inbox(now, parity=now.step % 2 if plan is not None else None)
        posted = self._send(now, inbox, plan, early=False)
        if not came_early:
            posted += self._send(now, inbox, plan, early=True)
        if came_early and ahead is not None:
            posted += ahead[1]
        self.hot.gather(now, inbox)
        for one in posted:
            one.wait()
        if plan is not None and steps.following is not None:
            following = steps.following
            boxes = self._inbox(following, parity=following.step % 2)
            self._ahead = following, self._send(following, boxes, None, early=True)
        return [SlotSource(box, group.slots, box.shape[1]) for box, group in zip(inbox, now.groups, strict=True)]

    def skip(self, steps: RankSteps) -> None:
        """Pass a step by without training on it: rows that enter R with it still do."""
        self._begin(steps.now.run)
        self.hot.enter(steps.now)

    def _begin(self, run: int) -> None:
        """Leave the channels of the run before."""
        if run != self._run and self._run is not None:
            self._communicator.close_run(self._run, ("rows", "gradients", "hot", "entering"))
            self._ahead = None
        self._run = run

    def _inbox(self, step: RankStep, *, parity: int | None) -> list[F32]:
        """An array [U, dim] a layout to receive a step's rows in; evaluation (None) has its own."""
        sizes = [len(group.slots) for group in step.groups]
        if parity is None:
            return [np.empty((size, dim), np.float32) for size, dim in zip(sizes, self._dims, strict=True)]
        boxes = self._inboxes[parity]
        for g, (size, dim) in enumerate(zip(sizes, self._dims, strict=True)):
            if len(boxes[g]) < size:
                boxes[g] = np.empty((size + size // 8, dim), np.float32)
        return [box[:size] for box, size in zip(boxes, sizes, strict=True)]

    def _send(self, step: RankStep, inbox: Sequence[F32], plan: StepPlan | None, *, early: bool) -> list[Posted]:
        """Post the early or the late rows of a step; those that this rank owns itself are copied."""
        channel = self._communicator.channel("rows", step.run)
        posted = []
        for g, (group, box) in enumerate(zip(step.groups, inbox, strict=True)):
            receives = dict(enumerate(_split(box, group, early=early)))
            slots = self._residency.slots(plan, g) if plan is not None else None
            sends: dict[int, Array] = {}
            for rank, wanted in enumerate(group.owned.to_send(early=early)):
                out = receives[rank] if rank == step.rank else np.empty((len(wanted), self._dims[g]), np.float32)
                keys = owned_keys(group.owned).take(wanted)
                source = self._residency.source(g, keys, None if slots is None else slots[wanted])
                source.read(out, self._threads)
                sends[rank] = out
            posted.append(channel.post(sends, receives, f"the rows of step {step.step}"))
        return posted

    def apply(self, step: RankStep, grads: Sequence[F32 | None], rules: Sequence[UpdateRule], plan: StepPlan) -> None:
        """Send gradients float32 [U, dim] of the batch's unique rows (None: zeros) to the owners, and update what this
        rank owns: one optimizer step a row with the mean over the global batch, added in the order of the ranks."""
        channel = self._communicator.channel("gradients", step.run)
        received, posted = [], []
        for group, grad, dim in zip(step.groups, grads, self._dims, strict=True):
            ordered = self._ordered(group, grad, dim, step)
            into = np.empty((len(group.owned.asked), dim), np.float32)
            parts = np.split(into, np.cumsum(group.owned.asked_counts)[:-1])
            own = np.split(ordered, np.cumsum(group.counts)[:-1])
            parts[step.rank][...] = own[step.rank]
            what = f"the gradients of step {step.step}"
            posted.append(channel.post(dict(enumerate(own)), dict(enumerate(parts)), what))
            received.append(into)
        self.hot.apply(step, grads, rules)
        for g, (group, into, rule) in enumerate(zip(step.groups, received, rules, strict=True)):
            posted[g].wait()
            self._update(g, group.owned, into, rule, self._residency.slots(plan, g))
        if self._check_every and (step.step + 1) % self._check_every == 0:
            self.hot.check(step)

    def _ordered(self, group: RankGroup, grad: F32 | None, dim: int, step: RankStep) -> F32:
        """Gradients owner after owner, weighted by this rank's share of the global batch."""
        out = np.zeros((len(group.order), dim), np.float32)
        if grad is not None:
            SlotRows.gather(grad, group.order, out, self._threads)
            if step.share != 1.0:
                out *= np.float32(step.share)
        return out

    def _update(self, group: int, owned: OwnedRows, received: F32, rule: UpdateRule, slots: I64 | None) -> None:
        total = np.empty((len(owned.locations), self._dims[group]), np.float32)
        starts = np.arange(len(received)) * self._dims[group]
        _pool.segment_sum(
            received.reshape(-1), starts, None, False, owned.positions, owned.position_offsets, total, self._threads
        )
        keys = owned_keys(owned)
        if len(self._frozen):
            trained = ~np.isin(keys.tables, self._frozen)
            keys, total = keys.take(trained), total[trained]
            slots = None if slots is None else slots[trained]
        self._residency.update(group, keys, slots, total, rule)


def owned_keys(owned: OwnedRows) -> RowKeys:
    """The rows that this rank owns of a step."""
    return RowKeys(owned.locations, owned.keys.ids, owned.keys.tables, owned.keys.missing)


def _split(inbox: F32, group: RankGroup, *, early: bool) -> list[F32]:
    """The parts of an inbox that the early, or late, rows of each owner fill."""
    first = 0 if early else int(group.early_counts.sum())
    counts = group.early_counts if early else group.late_counts
    return np.split(inbox[first : first + int(counts.sum())], np.cumsum(counts)[:-1])
