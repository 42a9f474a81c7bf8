"""Rows from their owners to the ranks that use them, and gradients back.

Forward of step t, on every rank: the owner moves its arena (if it has one), sends what could not be sent before the
last updates, and then the rows that no rank uses at steps t - 1 and t but some at t + 1 go out for t + 1, while the
model works. Received rows lie in one of two inboxes, by the parity of the step. Step t: gradients go to the owners, are
added in the order of the ranks, and each row is updated once, by its owner: before step t + 1 those that any rank uses
there, the others during it. Sizes are known from the plan: nothing travels but vectors.

With two levels this goes on between the nodes, for all that the ranks of a node use: one rank of the node collects a
row and hands it on to those that use it, and adds their gradients before they leave the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.embed import _pool
from headrace.embed._rows import RowSource, SlotRows, SlotSource
from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, U32, Bool
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.finite import first_not_finite, key_name
from headrace.embed.finite_over_ranks import raise_finding
from headrace.embed.held_gradients import AsGathered, HeldGradients
from headrace.embed.hot_replicas import HotReplicas
from headrace.embed.optimizers import UpdateRule
from headrace.embed.options_check import check_options
from headrace.embed.residency import Residency
from headrace.embed.row_keys import RowKeys
from headrace.embed.slot_table import PlanError
from headrace.embed.whole_exchange import WholeExchange, whole
from headrace.embed.wire import Arrival, Wire, WireType
from headrace.formats.schema import Schema
from headrace.indexer.exchange.channel import Channel, Posts
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.exchange.errors import RankMismatchError
from headrace.ingest.rank_step import OwnedRows, RankGroup, RankStep, RankSteps, UrgentRows, by_rank
from headrace.ingest.step_plan import StepPlan

_REPLACING = (
    "the replacing of rows (all ranks call load_state_dict, restore, forget_rows, import_table and what else replaces "
    "rows, at the same place)"
)

_OF_EVALUATION = ("evaluated", "node_evaluated", "finite_evaluated")
"""Of its own: what a rank that alone evaluates, or alone clips ("held"), sends is never taken for something else."""

_PURPOSES = (
    *("rows", "gradients", "deferred", "held", "hot", "entering", "node_rows", "node_gradients", "finite", "replaced"),
    *_OF_EVALUATION,
)


class RankExchange(WholeExchange):
    """The exchange of one stage; `stores` and `residency` are those of its row layouts. One caller at a time.

    With `check_every` the options of a step and, after it, the replicas of hot rows are compared across ranks at every
    so many steps.
    `wire` is the type in which cold rows and their gradients travel; those of R are always float32.

    State: the step whose early rows are under way, which is the next one if its batch comes next; any other step gets
    all its rows late.
    """

    def __init__(
        self,
        communicator: Communicator,
        stores: Sequence[ChunkStore],
        residency: Residency,
        *,
        schema: Schema,
        frozen: U32,
        threads: Threads | None,
        check_every: int = 0,
        wire: WireType = "float32",
    ) -> None:
        super().__init__()
        self._communicator = communicator
        self._dims = tuple(store.dim for store in stores)
        self._residency = residency
        self._schema = schema
        self._frozen = frozen
        self._threads = threads
        self._check_every = check_every
        self.wire = Wire(wire)
        self.hot = HotReplicas(communicator, stores, residency, frozen=frozen, threads=threads)
        self._inboxes = [[np.empty((0, dim), np.float32) for dim in self._dims] for _ in range(2)]
        self._run: int | None = None
        self._last_step = -1
        self._evaluated: int | None = None
        self._deferred: list[Deferred] = []
        self._unsent: list[tuple[int, RankGroup, OwnGradients, UrgentRows, RankStep, UpdateRule]] = []
        self._ahead: tuple[RankStep, list[Arrival]] | None = None
        self._held: HeldGradients | None = None
        self._collected: tuple[RankStep, list[OwnGradients]] | None = None
        self._beyond_wire: str | None = None

    @whole("stage(batch)")
    def enter(self, steps: RankSteps, plan: StepPlan | None) -> list[RowSource]:
        """The rows of step ``steps.now``, a source a layout, in the order of the batch's unique rows.

        With a plan (training) the early rows of the following step are sent on their way. All ranks enter alike.
        """
        now, ahead = steps.now, None
        self._beyond_wire = None
        if plan is not None:
            self._begin(now)
            with self.stands(PlanError):
                self._residency.enter(plan, [owned_keys(group.owned) for group in now.owning])
            self._last_step = now.step
            ahead, self._ahead = self._ahead, None
            self.hot.enter(now)
        else:
            self._evaluate(now.run)
        came_early = ahead is not None and ahead[0] is now
        if ahead is not None and not came_early:
            self._give_up(ahead)
        inbox = self._inbox(now, parity=now.step % 2 if plan is not None else None)
        rows, node_rows = ("rows", "node_rows") if plan is not None else _OF_EVALUATION[:2]
        posted = self._send_owned(rows, now, inbox, plan, early=False)
        self._send_deferred()
        if came_early and ahead is not None:
            posted += ahead[1]
        else:
            posted += self._send_owned(rows, now, inbox, plan, early=True)
        for one in posted:
            one.wait()
        if now.inner is not None:
            inbox = self._hand_on(node_rows, now, now.inner, inbox)
        self.hot.gather(now, inbox)
        if plan is not None and steps.following is not None:
            following = steps.following
            boxes = self._inbox(following, parity=following.step % 2)
            self._ahead = following, self._send_owned("rows", following, boxes, None, early=True)
        self._communicator.activity.did(f"stage(batch) of step {now.step}" + (" in evaluation" if plan is None else ""))
        return [SlotSource(box, group.slots, box.shape[1]) for box, group in zip(inbox, now.groups, strict=True)]

    @whole("stage.skip")
    def skip(self, steps: RankSteps) -> None:
        """Pass a step by without training on it: rows that enter R with it still do."""
        self._begin(steps.now)
        self._last_step = steps.now.step
        self.settle()
        self.drop_held()
        self.hot.enter(steps.now)

    def _begin(self, step: RankStep) -> None:
        """Leave the channels of the run before. RuntimeError for a step behind one that never came here."""
        run, expected = step.run, self._last_step + 1 if step.run == self._run else 0
        if step.step > expected:
            with self.stands(RuntimeError):
                raise RuntimeError(
                    f"the batch of step {step.step}, but that of step {expected} was not passed to the stage on this "
                    "rank: over ranks each calls stage(batch) and stage.step(batch), or stage.skip(batch), for every "
                    "batch that its loader gives, also for one without rows"
                )
        if run == self._run:
            return
        if self._run is not None:
            self.settle()
            self._communicator.close_run(self._run, _PURPOSES)
            self._give_up_ahead()
            self.hot.begin_run()
        self._run, self._last_step = run, -1

    def renew(self) -> None:
        """Rows are about to be replaced: those that were sent ahead of a step, and the replicas of R, are got anew with
        the step to come. On all ranks, where there are any; else there is nothing to do."""
        if self._ahead is None and not self.hot.are_to_renew:
            return
        with self.whole("replacing rows"):
            channel = self._communicator.channel("replaced", self._run or 0)
            channel.all_gather(np.zeros(1, np.uint8), _REPLACING)
            self._give_up_ahead()
            self.hot.renew()

    def _evaluate(self, run: int) -> None:
        """Give the channels of the evaluation before this one back: between two of its batches nothing is under way."""
        before, self._evaluated = self._evaluated, run
        if before is not None and before not in (run, self._run):
            self._communicator.release_run(before, _OF_EVALUATION)

    def _give_up_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._give_up(ahead)

    def _give_up(self, ahead: tuple[RankStep, list[Arrival]]) -> None:
        """Leave the inbox of a step that does not come to what is under way to it: it may come at any time."""
        self._inboxes[ahead[0].step % 2] = [np.empty((0, dim), np.float32) for dim in self._dims]

    def _channel(self, purpose: str, step: RankStep) -> Channel:
        """Between owners and those that ask them: all ranks, or one of each node."""
        members = None if step.inner is None else self._communicator.cross_members(step.node_size)
        return self._communicator.channel(purpose, step.run, members)

    def _node_channel(self, purpose: str, step: RankStep) -> Posts:
        return self._communicator.node_channel(purpose, step.run, step.node_size)

    def _inbox(self, step: RankStep, *, parity: int | None) -> list[F32]:
        """An array [U, dim] a layout to receive a step's rows in; evaluation (None) has its own."""
        sizes = [len(group.slots) for group in step.owning]
        if parity is None:
            return [np.empty((size, dim), np.float32) for size, dim in zip(sizes, self._dims, strict=True)]
        boxes = self._inboxes[parity]
        for g, (size, dim) in enumerate(zip(sizes, self._dims, strict=True)):
            if len(boxes[g]) < size:
                boxes[g] = np.empty((size + size // 8, dim), np.float32)
        return [box[:size] for box, size in zip(boxes, sizes, strict=True)]

    def _send_owned(
        self, purpose: str, step: RankStep, inbox: Sequence[F32], plan: StepPlan | None, *, early: bool
    ) -> list[Arrival]:
        """Post the early or the late rows of a step; those that this rank owns itself are copied."""
        channel = self._channel(purpose, step)
        posted = []
        for g, (group, box) in enumerate(zip(step.owning, inbox, strict=True)):
            slots = self._residency.slots(plan, g) if plan is not None else None
            keys = owned_keys(group.owned)
            receives = dict(enumerate(_split(box, group, early=early)))
            sends: dict[int, F32] = {}
            for rank, wanted in enumerate(group.owned.to_send(early=early)):
                shape = len(wanted), self._dims[g]
                out = receives[rank] if rank == channel.rank else self.wire.room(channel, rank, shape)
                asked = keys.take(wanted)
                source = self._residency.source(g, asked, None if slots is None else slots[wanted])
                source.read(out, self._threads)
                sends[rank] = out
                if rank != channel.rank:
                    self._note_beyond_wire("vector", out, asked)
            posted.append(self.wire.post(channel, sends, receives, f"the rows of step {step.step}"))
        return posted

    def _hand_on(self, purpose: str, step: RankStep, inner: Sequence[RankGroup], collected: Sequence[F32]) -> list[F32]:
        """Rows [U, dim] of this rank's batch from what the ranks of its node have collected."""
        channel = self._node_channel(purpose, step)
        inbox, posted = [], []
        for group, own, box, dim in zip(step.groups, inner, collected, self._dims, strict=True):
            mine = np.empty((len(group.slots), dim), np.float32)
            receives = dict(enumerate(_split(mine, group, early=False)))
            sends: dict[int, F32] = {}
            for place, wanted in enumerate(group.owned.asked_of_rank):
                shape = len(wanted), dim
                out = receives[place] if place == channel.rank else self.wire.room(channel, place, shape)
                SlotRows.gather(box, own.slots[wanted], out, self._threads)
                if place != channel.rank and self.wire.is_narrow:
                    self._note_beyond_wire("vector", out, owned_keys(group.owned).take(wanted))
                sends[place] = out
            posted.append(self.wire.post(channel, sends, receives, f"the rows of step {step.step} in this node"))
            inbox.append(mine)
        for one in posted:
            one.wait()
        return inbox

    @whole("stage.step")
    def apply(self, steps: RankSteps, grads: Sequence[F32 | None], rules: Sequence[UpdateRule], plan: StepPlan) -> None:
        """Send gradients float32 [U, dim] of the batch's unique rows (None: zeros) to the owners, and update what this
        rank owns: one optimizer step a row with the mean over the global batch, added in the order of the ranks.

        Rows that no rank uses at the following step are updated by these rules during it, see :meth:`settle`.
        What :meth:`hold` has gathered of this step is applied instead of `grads`, all of it at once, and what
        :meth:`collect` has.
        """
        step, following = steps.now, steps.following
        held, self._held = self._held, None
        if held is not None and held.step is step:
            self.hot.apply(step, held.hot, rules)
            cold = held.cold
        else:
            coming, hot = self._post_all("gradients", step, grads, following, rules)
            self.hot.apply(step, hot, rules)
            cold = [one.total(self._threads) for one in coming]
        for g, ((rows, total), group, rule) in enumerate(zip(cold, step.owning, rules, strict=True)):
            slots = self._residency.slots(plan, g)
            self._update(g, owned_keys(group.owned).take(rows), total, rule, None if slots is None else slots[rows])
        self._communicator.activity.did(f"stage.step of step {step.step}")
        if self._checks_at(step):
            self._check_replicas(step)

    def _checks_at(self, step: RankStep) -> bool:
        return self._check_every > 0 and (step.step + 1) % self._check_every == 0

    @whole("stage.step")
    def check_options(self, step: RankStep, rules: Sequence[UpdateRule]) -> None:
        """RankMismatchError, on all ranks, where a step at which they are compared is made with other options on some;
        nothing has changed."""
        if self._checks_at(step):
            channel = self._communicator.channel("hot", step.run)
            with self.stands(RankMismatchError):
                check_options(channel, step.step, self._schema, rules, self._frozen)

    def _check_replicas(self, step: RankStep) -> None:
        """RuntimeError, on all ranks, unless the replicas are the same bits everywhere."""
        other = self.hot.differing(step)
        if other:
            with self.stands(RuntimeError):
                raise RuntimeError(f"after step {step.step} the replicas of ranks {other} differ from those of rank 0")

    @whole("clip_grad_norm_")
    def hold(
        self, steps: RankSteps, grads: Sequence[F32 | None], of: AsGathered, *, alike: bool = False
    ) -> HeldGradients:
        """Send all gradients, those that `of` knows, as :meth:`apply` does, and keep the sums for it: none is put off.
        All ranks alike. `alike` as for :meth:`collect`."""
        if not self.holds(steps.now):
            step = steps.now
            self.collect(step, grads, "held", alike=alike)
            coming, hot = self._post_all("held", step, grads, None, ())
            cold = [one.total(self._threads) for one in coming]
            trained = [
                ~np.isin(group.owned.keys.tables[rows], self._frozen)
                for group, (rows, _) in zip(step.owning, cold, strict=True)
            ]
            self._held = HeldGradients(step, of, cold, trained, hot, self.hot.own_trained(step))
        assert self._held is not None
        return self._held

    def holds(self, step: RankStep) -> bool:
        """Whether :meth:`hold` has gathered the gradients of `step`."""
        return self._held is not None and self._held.step is step

    def check_held(self, step: RankStep, grads: Sequence[Tensor | None]) -> None:
        """RuntimeError if :meth:`hold` has gathered others of `step` than `grads`, which would be lost."""
        if self._held is not None and self._held.step is step:
            self._held.of.check(grads)

    def drop_held(self) -> None:
        """Forget what :meth:`hold` and :meth:`collect` have gathered."""
        self._held, self._collected = None, None

    @whole("adding up the gradients of a node")
    def collect(
        self, step: RankStep, grads: Sequence[F32 | None], purpose: str = "gradients", *, alike: bool = False
    ) -> None:
        """Add up the gradients of this node that it sends to others; of one level there is nothing to do. For
        :meth:`apply` and :meth:`hold`, which do it too where it was not done.

        FloatingPointError, on all ranks if they check `alike`, for a sum that the wire cannot carry, before any update.
        """
        own = [OwnGradients(grad, dim, step.share) for grad, dim in zip(grads, self._dims, strict=True)]
        if step.inner is not None:
            self._send_deferred()
            channel, what = self._node_channel("node_gradients", step), f"{_gradients_of(step, purpose)} in this node"
            coming = [
                self._post_gradients(channel, group, mine, None, what)
                for group, mine in zip(step.groups, own, strict=True)
            ]
            sums = [one.total(self._threads)[1] for one in coming]
            own = [OwnGradients(total, dim, 1.0) for total, dim in zip(sums, self._dims, strict=True)]
            if self.wire.is_narrow:
                self._check_sums(step, own, alike=alike)
        self._collected = step, own

    def _check_sums(self, step: RankStep, own: Sequence[OwnGradients], *, alike: bool) -> None:
        assert step.inner is not None
        error = None
        for outer, group, sums in zip(step.groups, step.inner, own, strict=True):
            at = self._first_beyond_wire(group, sums, step.rank // step.node_size)
            if at is not None and error is None:
                name = key_name(self._schema, owned_keys(outer.owned), at)
                error = self.wire.too_large(f"gradient, summed over the ranks of this node, of {name}")
        self.raise_finding(self.finite_channel(step) if alike else None, error, f"{_gradients_of(step)} in this node")

    def raise_finding(self, channel: Channel | None, found: str | None, what: str, *, trains: bool = True) -> None:
        """:func:`raise_finding`. Where one rank alone raises it in training, the others wait for what it does not
        send: it cannot go on."""
        kinds = () if channel is None and trains else (FloatingPointError,)
        with self.stands(*kinds):
            raise_finding(channel, found, what, trains=trains)

    def beyond_wire(self, step: RankStep, grads: Sequence[F32 | None]) -> tuple[int, int] | None:
        """(layout, unique row of the batch) of the first gradient that goes to another rank and that the wire turns
        into an infinity."""
        here = step.rank if step.inner is None else step.rank % step.node_size
        for g, (grad, dim, group) in enumerate(zip(grads, self._dims, step.groups, strict=True)):
            at = self._first_beyond_wire(group, OwnGradients(grad, dim, step.share), here)
            if at is not None:
                return g, at
        return None

    def _first_beyond_wire(self, group: RankGroup, own: OwnGradients, here: int) -> int | None:
        if own.grad is None or self.wire.first_beyond(own.grad) is None:  # a share makes them smaller
            return None
        parts = by_rank(group.order, group.counts)
        sent = np.concatenate([part for rank, part in enumerate(parts) if rank != here] or [group.order[:0]])
        values = np.empty((len(sent), own.dim), np.float32)
        own.read(sent, values, self._threads)
        at = self.wire.first_beyond(values)
        return None if at is None else int(sent[at])

    def _note_beyond_wire(self, kind: str, values: F32, keys: RowKeys) -> None:
        at = self.wire.first_beyond(values)
        if at is not None and self._beyond_wire is None:
            self._beyond_wire = self.wire.too_large(f"{kind} of {key_name(self._schema, keys, at)}")

    def vectors_beyond_wire(self) -> str | None:
        """Which row of those sent since the last :meth:`enter` began has become infinite on the way, in words."""
        return self._beyond_wire

    def held_not_finite(self, step: RankStep) -> str | None:
        """Which row has a sum of :meth:`hold` that is not finite, in words: clipping by a norm that is not does it."""
        if self._held is None or not self.holds(step):
            return None
        for group, (rows, cold), hot in zip(step.owning, self._held.cold, self._held.hot, strict=True):
            found = [(owned_keys(group.owned).take(rows), cold)]
            if group.hot is not None and hot is not None:
                keys = group.hot.own_keys
                own = RowKeys(group.hot.own_locations, keys.ids, keys.tables, keys.missing)
                found.append((own, hot[group.hot.own]))
            for names, sums in found:
                at = first_not_finite(sums)
                if at is not None:
                    return f"gradient, clipped, of {key_name(self._schema, names, at)} is not finite"
        return None

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def finite_channel(self, step: RankStep, *, trains: bool = True) -> Channel:
        """Between all ranks, for what they tell each other of values that are not finite."""
        return self._communicator.channel("finite" if trains else "finite_evaluated", step.run)

    def norm_channel(self, step: RankStep) -> Channel:
        """Between all ranks, in the order of their steps."""
        return self._communicator.channel("hot", step.run)

    def _post_all(
        self,
        purpose: str,
        step: RankStep,
        grads: Sequence[F32 | None],
        following: RankStep | None,
        rules: Sequence[UpdateRule],
    ) -> tuple[list[Gradients], list[F32 | None]]:
        """Gradients on their way to the owners of each layout, and the sums of those of R. With `following` only those
        that it needs; the others are sent later.

        What the step before has put off is applied meanwhile: it is of rows that this step does not use.
        """
        what = _gradients_of(step, purpose)
        self._send_deferred()
        if self._collected is None or self._collected[0] is not step:
            self.collect(step, grads, purpose)
        assert self._collected is not None
        (_, own), self._collected = self._collected, None
        put_off, self._deferred = self._deferred, []
        now: list[Gradients] = []
        for g, (group, mine) in enumerate(zip(step.owning, own, strict=True)):
            urgent = following.urgent_before[g] if following is not None and following.urgent_before else None
            now.append(self._post_gradients(self._channel(purpose, step), group, mine, urgent, what))
            if urgent is not None:
                rest = UrgentRows(~urgent.sent, ~urgent.owned)
                self._unsent.append((g, group, mine, rest, step, rules[g]))
        self._apply_deferred(put_off)
        return now, self.hot.reduce(step, grads)

    @whole("the updates that were put off")
    def settle(self, why: str = "") -> None:
        """Make the updates of the last step that were put off, once all ranks are at their next step or settle, too;
        `why`, for the error where some do not."""
        self._send_deferred(why)
        put_off, self._deferred = self._deferred, []
        self._apply_deferred(put_off)

    def _apply_deferred(self, put_off: Sequence[Deferred]) -> None:
        for g, one, rule in put_off:
            rows, total = one.total(self._threads)
            self._update(g, owned_keys(one.owned).take(rows), total, rule, None)

    def _send_deferred(self, why: str = "") -> None:
        """Begin to send the gradients that were put off: behind the late rows of the next step, which are waited for,
        since what is sent to a rank travels in order."""
        unsent, self._unsent = self._unsent, []
        for g, group, own, part, step, rule in unsent:
            what = f"{_gradients_of(step)}{why}"
            coming = self._post_gradients(self._channel("deferred", step), group, own, part, what)
            self._deferred.append((g, coming, rule))

    def _post_gradients(
        self, channel: Posts, group: RankGroup, own: OwnGradients, part: UrgentRows | None, what: str
    ) -> Gradients:
        """Send gradients, those of a part of the rows if given, to where the rows were asked for."""
        owned, order, sent, counts, places = group.owned, group.order, group.counts, group.owned.asked_counts, None
        if part is not None:
            _, sent = _chosen(part.sent, sent)
            order = order[part.sent]
            places, counts = _chosen(part.owned[owned.asked], counts)
        into = np.empty((int(counts.sum()), own.dim), np.float32)
        receives, sends = dict(enumerate(by_rank(into, counts))), {}
        for rank, rows in enumerate(by_rank(order, sent)):
            here = rank == channel.rank
            sends[rank] = receives[rank] if here else self.wire.room(channel, rank, (len(rows), own.dim))
            own.read(rows, sends[rank], self._threads)
        arrival = self.wire.post(channel, sends, receives, what)
        return Gradients(owned, None if part is None else part.owned, places, into, arrival)

    def _update(self, group: int, keys: RowKeys, total: F32, rule: UpdateRule, slots: I64 | None) -> None:
        if len(self._frozen):
            trained = ~np.isin(keys.tables, self._frozen)
            keys, total = keys.take(trained), total[trained]
            slots = None if slots is None else slots[trained]
        self._residency.update(group, keys, slots, torch.from_numpy(total), rule)


@dataclass(frozen=True, eq=False)
class OwnGradients:
    """Gradients float32 [U, dim] of a batch, None for zeros, and what they are multiplied with."""

    grad: F32 | None
    dim: int
    share: float

    def read(self, order: I64, out: F32, threads: Threads | None) -> None:
        """Put those at `order`, as they are sent, into `out` [n, dim]."""
        if self.grad is None:
            out[...] = 0.0
            return
        SlotRows.gather(self.grad, order, out, threads)
        if self.share != 1.0:
            out *= np.float32(self.share)


class Gradients:
    """Gradients on their way to this rank, of the rows of one layout that it owns, or of those where `rows` is True:
    what was asked for at position i of all is then received at places[i]."""

    def __init__(
        self, owned: OwnedRows, rows: Bool | None, places: I64 | None, received: F32, arrival: Arrival
    ) -> None:
        self.owned = owned
        self._rows, self._places = rows, places
        self._received, self._arrival = received, arrival

    def total(self, threads: Threads | None) -> tuple[I64, F32]:
        """(positions int64 [n] of the rows in what is owned, the sums float32 [n, dim] in the order of the ranks)."""
        self._arrival.wait()
        owned, dim = self.owned, self._received.shape[1]
        rows, positions, offsets = np.arange(len(owned.locations)), owned.positions, owned.position_offsets
        if self._rows is not None and self._places is not None:
            rows, lengths = np.flatnonzero(self._rows), np.diff(offsets)
            positions = self._places[positions[np.repeat(self._rows, lengths)]]
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum(lengths[rows], out=offsets[1:])
        total = np.empty((len(rows), dim), np.float32)
        starts = np.arange(len(self._received)) * dim
        _pool.segment_sum(self._received.reshape(-1), starts, None, False, positions, offsets, total, threads)
        return rows, total


Deferred: TypeAlias = tuple[int, Gradients, UpdateRule]
"""A layout, gradients of it that come later, and how they are applied."""


def _chosen(chosen: Bool, counts: I64) -> tuple[I64, I64]:
    """Of rows owner after owner, or rank after rank: (the place of each chosen one among these, how many of each)."""
    before = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(chosen, out=before[1:])
    return before[:-1], np.diff(before[np.cumsum(counts)], prepend=0)


def _gradients_of(step: RankStep, purpose: str = "gradients") -> str:
    return f"the gradients of step {step.step}" + (" for clip_grad_norm_" if purpose == "held" else "")


def owned_keys(owned: OwnedRows) -> RowKeys:
    """The rows that this rank owns of a step."""
    return RowKeys(owned.locations, owned.keys.ids, owned.keys.tables, owned.keys.missing)


def _split(inbox: F32, group: RankGroup, *, early: bool) -> list[F32]:
    """The parts of an inbox that the early, or late, rows of each owner fill."""
    first = 0 if early else int(group.early_counts.sum())
    counts = group.early_counts if early else group.late_counts
    return by_rank(inbox[first:], counts)
