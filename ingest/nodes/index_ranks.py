"""IndexRanks: ask the owners of a batch's unique rows, and answer what other ranks ask, one round a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.formats.rows import RowBlock, Source
from headrace.formats.schema import Schema
from headrace.formats.schema_difference import plain_differences
from headrace.indexer.dedup import Deduplicator
from headrace.indexer.dit import DIT
from headrace.indexer.exchange.agreement import Detail, agree
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.exchange.errors import ExchangeClosedError, RankFailedError
from headrace.indexer.exchange.requests import (
    ENDED,
    FAILED,
    RUNNING,
    Header,
    Level,
    RequestRound,
    Wanted,
    key_hashes,
    tell_status,
    wanted_rows,
)
from headrace.indexer.indexed import ABSENT, I64, U64, Bool, IndexedGroup
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.errors import NodeClosedError
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import State
from headrace.ingest.hot_rounds import HotRounds
from headrace.ingest.hot_set import NO_SLOT
from headrace.ingest.indexed_rows import IndexedRows
from headrace.ingest.location_set import LocationSet
from headrace.ingest.nodes.index import check_index_tables, index_tables, indexed_rows
from headrace.ingest.rank_rows import RankRows, padded
from headrace.ingest.rank_step import HotRows, OwnedRows, RankGroup, RankStep, UrgentRows
from headrace.ingest.row_arrays import RowConverter
from headrace.ingest.step_plan import FetchKeys
from headrace.ingest.transpose import transpose_query_ids

Uneven = Literal["short", "drop", "pad", "raise"]
_START = "the start of an epoch (all ranks iterate over their loaders, and over an evaluation's, together)"
_PURPOSES = ("requests", "replies", "hot_requests", "steps", "node_requests", "node_replies")
_PLANNED = ("next_steps",)
"""Of the rounds of a run, which are over when its source is, and of the planning of its steps, which goes on."""

UNEVEN = ("short", "drop", "pad", "raise")


class UnevenRanksError(ValueError):
    """The sources of some ranks ended before those of others: `ranks`."""

    def __init__(self, step: int, ranks: list[int]) -> None:
        self.ranks = tuple(ranks)
        names = ", ".join(map(str, ranks))
        super().__init__(
            f"step {step}: the source of rank {names} is at its end, others are not; choose uneven='short', 'pad' or "
            "'drop', or give all ranks the same number of batches"
        )


class IndexRanks(Node[RankRows]):
    """Index the batches of all ranks, step by step, each key at its owner; `index` holds what this rank owns.

    A rank deduplicates its batch, asks each owner for its rows, and inserts what it is asked for in the order (step,
    table, rank, position). It tells who asks which rows can travel early, those that no rank uses at the two steps
    before, and which gradients of the step before are urgent, those of rows that any rank uses at this one.

    All ranks make the same number of steps. When the source of one is at its end before those of others, `uneven` says
    what becomes of it: "short": it goes on with empty batches; "pad": batches are filled up to the most rows of any
    rank, ``batch.valid`` is False there; "drop": all end together, what the others hold is dropped and counted as
    skipped; "raise": UnevenRanksError on all ranks. An error of a source, or of an owner, is raised on all ranks at
    that step.

    `hot_rows` rows of each layout at most make up R, which all ranks hold; the owners choose them every `hot_every`
    steps by how many batches of the ranks contain them, and nothing of them is asked for but one bit a row and step.

    With `node_size` G > 1, where ranks share nodes (G each, one after the other), a node's ranks deduplicate together:
    each row travels once to a node that wants it, and one sum of gradients back.

    `facts`, as they then are, are compared across ranks at each start: RankMismatchError names what differs on which
    rank. New rows are provisional until their step is delivered here, as in :class:`Index`.
    """

    def __init__(
        self,
        source: Iterable[RowBlock],
        schema: Schema,
        index: DIT,
        communicator: Communicator,
        *,
        insert: bool = True,
        uneven: Uneven = "short",
        look_ahead: bool = True,
        hot_rows: int = 0,
        hot_every: int = 100,
        node_size: int = 1,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(source)
        check_index_tables(schema, index)
        if index.owner_rank != communicator.rank:
            raise ValueError(f"an index of owner_rank={index.owner_rank} on rank {communicator.rank}")
        if uneven not in UNEVEN:
            raise ValueError(f"uneven={uneven!r} is none of {', '.join(UNEVEN)}")
        self.schema, self.index, self.communicator = schema, index, communicator
        self.insert, self.uneven = insert, uneven
        self._look_ahead = look_ahead and insert
        self.hot_rows = check_int(self.name, "hot_rows", hot_rows, minimum=0)
        self.hot_every = check_int(self.name, "hot_every", hot_every, minimum=1)
        self._hot: HotRounds | None = None
        self.node_size = check_int(self.name, "node_size", node_size, minimum=1)
        if communicator.world_size % self.node_size:
            raise ValueError(f"{communicator.world_size} ranks are not nodes of node_size={node_size} each")
        self._node_round: RequestRound | None = None
        self._given_facts = {} if facts is None else facts  # some change from one epoch to the next
        self._facts = {"schema": schema_fact(schema), "train": insert, "uneven": uneven, "hot_rows": self.hot_rows}
        self._facts |= {"hot_every": self.hot_every, "node_size": self.node_size}
        self._tables = index_tables(schema)
        self._dedup = Deduplicator(self._tables)
        self._converter = RowConverter(schema)
        self._run: int | None = None
        self._round: RequestRound | None = None
        self._forget()

    def _forget(self) -> None:
        self._step = 0
        self._source_ended = False
        self._before: list[list[LocationSet]] = []  # what the last two steps use, of each layout
        self._told: tuple[UrgentRows, ...] | None = None
        self._last: tuple[RankGroup, ...] = ()  # what the step before was between owners and those that ask them

    def _reset(self, state: State | None) -> None:
        self._leave_run()
        self._undo()
        if self.insert:
            self.index.claim_writer(self)
            self.index.undo_after(None)
        self._reset_source(state)
        self._forget()
        self._run = run = self.communicator.new_run()
        facts = {**self._facts, **self._given_facts, "number of epochs and evaluations begun": run}
        agree(self.communicator.channel("control"), facts, _START)
        self.communicator.activity.did("the start of an epoch" if self.insert else "the start of an evaluation")
        members = self.communicator.cross_members(self.node_size) if self.node_size > 1 else None
        self._round = self._make_round("requests", "replies", run, members)
        self._node_round = None
        if self.node_size > 1:
            members = self.communicator.node_members(self.node_size)
            self._node_round = self._make_round("node_requests", "node_replies", run, members)
        self._hot = None
        if self.hot_rows and self.insert:
            channel = self.communicator.channel("hot_requests", run)
            groups = len(self.schema.groups)
            self._hot = HotRounds(channel, groups, most=self.hot_rows, every=self.hot_every)

    def _make_round(self, requests: str, replies: str, run: int, members: list[int] | None) -> RequestRound:
        asking, answering = (self.communicator.channel(purpose, run, members) for purpose in (requests, replies))
        return RequestRound(asking, answering, self._tables, np.array(table_order(self.schema), np.int64))

    def _interrupt(self) -> None:
        self._leave_run()

    def _close(self) -> None:
        self._leave_run()
        self._undo()

    def _leave_run(self) -> None:
        if self._run is not None:
            self.communicator.close_run(self._run, (*_PURPOSES, *_PLANNED))

    def _undo(self) -> None:
        if self.insert and not self.index.closed and self.index.writer_is(self):
            self.index.undo_after(None)
            self.index.release_writer(self)

    def delivered(self, item: object) -> None:
        """Make the new rows of a delivered step permanent, and count the rows owned here as used once more."""
        ranks, ticket = getattr(item, "ranks", None), getattr(item, "ticket", None)
        if self.insert and ticket is not None and ranks is not None:
            self.index.commit_used(ticket, _used_here(ranks.now))
        super().delivered(item)

    def all_know_next(self, step: int, known: bool) -> bool:
        """Whether every rank knows the step after `step`: all call it, once a step, where one may hand out what it
        holds without waiting for more. What is sent early or put off at a step depends on the next one, so it must be
        known on all ranks or on none. By another thread than the one that reads from this node."""
        if self._run is None:
            raise RuntimeError(f"{self.name} was not begun")
        try:
            channel = self.communicator.channel("next_steps", self._run)
            mine = np.array([known], np.uint8)
            return bool(channel.all_gather(mine, f"whether what comes after step {step} is known").all())
        except ExchangeClosedError as error:
            raise NodeClosedError(f"{self.name} was closed while it waited for other ranks") from error

    def _next(self) -> RankRows:
        if self.insert and not self.index.writer_is(self):
            raise RuntimeError("another loader has begun to read into this index; one at a time can train on it")
        try:
            return self._next_step()
        except StopIteration:  # on all ranks at this step, and nothing is under way
            if self._run is not None:
                self.communicator.close_run(self._run, _PURPOSES)
            raise
        except ExchangeClosedError as error:
            raise NodeClosedError(f"{self.name} was closed while it waited for other ranks") from error

    def _next_step(self) -> RankRows:
        assert self._round is not None
        own, status, failure = self._own_rows()
        if self._hot is not None:
            self._hot.choose(self._step)
        wanted, slots = self._wanted(own)
        said = "" if failure is None else _line(failure)
        asked: list[tuple[Header, U64]] = []
        try:
            if self._node_round is None:
                asked = self._ask(self._round, own.num_rows, own.groups, wanted, status, said)
                headers = [header for header, _ in asked]
            else:
                channel = self.communicator.channel("steps", self._run or 0)
                headers = tell_status(channel, self._step, own.num_rows, status, said)
        except RankFailedError as error:
            if failure is not None and error.rank == self.communicator.rank:
                raise failure from None
            raise
        self._check_end(headers, own)
        hot = None if self._hot is None else self._hot.touch(slots, self._step)
        inner: tuple[RankGroup, ...] | None = None
        if self._node_round is None:
            owned, ticket, groups = self._answer(asked, wanted, hot)
        else:
            owned, ticket, groups, inner = self._two_levels(self._node_round, own, wanted, hot)
        rows = np.array([header.rows for header in headers], np.int64)
        step = RankStep(
            self._run or 0, self._step, self.communicator.rank, rows, groups, inner, self.node_size, self._told
        )
        self._step += 1
        valid = own.num_rows
        if self.uneven == "pad":
            own = padded(own, int(rows.max()))
        return RankRows(
            self._located(replace(own, ticket=ticket, index_serial=self.index.serial), step), owned, step, valid
        )

    def _ask(
        self, one: RequestRound, rows: int, groups: Sequence[IndexedGroup], wanted: list[Wanted], status: int, text: str
    ) -> list[tuple[Header, U64]]:
        epoch = 0 if self._hot is None else self._hot.epoch
        return one.ask(self._step, rows, groups, wanted, status=status, text=text, epoch=epoch)

    def _two_levels(
        self, node: RequestRound, own: IndexedRows, wanted: list[Wanted], hot: list[HotRows] | None
    ) -> tuple[tuple[IndexedGroup, ...], int | None, tuple[RankGroup, ...], tuple[RankGroup, ...]]:
        """Ask the collectors of this node, each of which asks owners for what the whole node wants, each row once."""
        assert self._round is not None
        here = self._ask(node, own.num_rows, own.groups, wanted, RUNNING, "")
        counts = node.counts_by_group(here)
        nothing = [np.empty(0, np.bool_)] * node.size, [0] * node.size
        try:
            union = self._dedup.deduplicate(node.columns(here)).groups
            collected = [self._wanted_rows(key_hashes(group, self._tables), "cross") for group in union]
            asked = self._ask(self._round, 0, union, collected, RUNNING, "")
            owned, ticket, inner = self._answer(asked, collected, hot)
        except ExchangeClosedError:
            raise
        except Exception as error:
            node.answer(self._step, *nothing, error=_line(error))
            raise
        node.answer(self._step, *nothing)
        shares: list[HotRows] | list[None] = [None] * len(union) if hot is None else hot
        groups = []
        for g, (group, want, share) in enumerate(zip(union, wanted, shares, strict=True)):
            rows = self._owned_rows(group, counts[g], np.zeros(group.num_unique, np.bool_))
            groups.append(RankGroup.of(want.order, want.counts, np.zeros(len(want.order), np.bool_), rows, share))
        return owned, ticket, tuple(groups), inner

    def _wanted_rows(self, hashes: U64, level: Level, cold: I64 | None = None) -> Wanted:
        return wanted_rows(hashes, self.communicator.world_size, cold, node_size=self.node_size, level=level)

    def _wanted(self, own: IndexedRows) -> tuple[list[Wanted], list[I64]]:
        """What to ask for of each layout, and the slots in R of its unique rows."""
        wanted, slots = [], []
        for g, (group, keys) in enumerate(zip(own.groups, own.unique_keys(), strict=True)):
            hashes = key_hashes(group, self._tables)
            cold = None
            if self._hot is not None:
                slots.append(self._hot.find(g, keys, hashes))
                cold = np.flatnonzero(slots[-1] == NO_SLOT)
            wanted.append(self._wanted_rows(hashes, "all" if self.node_size == 1 else "node", cold))
        return wanted, slots

    def _own_rows(self) -> tuple[IndexedRows, int, Exception | None]:
        """This rank's next batch, deduplicated, and what to say of it to the others."""
        if self._source_ended:
            return self._deduplicated(empty_block(self.schema)), ENDED, None
        try:
            return self._deduplicated(self._pull()), RUNNING, None
        except StopIteration:
            self._source_ended = True
            return self._deduplicated(empty_block(self.schema)), ENDED, None
        except NodeClosedError:
            raise
        except Exception as error:
            return self._deduplicated(empty_block(self.schema)), FAILED, error

    def _deduplicated(self, block: RowBlock) -> IndexedRows:
        return indexed_rows(block, self.schema, self._converter, self._dedup.deduplicate)

    def _check_end(self, headers: list[Header], own: IndexedRows) -> None:
        """StopIteration or UnevenRanksError where this step is not made."""
        ended = [header.rank for header in headers if header.status == ENDED]
        if len(ended) == len(headers):
            raise StopIteration
        if ended and self.uneven == "raise":
            raise UnevenRanksError(self._step, ended)
        if ended and self.uneven == "drop":
            self._skip(own.num_rows)
            raise StopIteration

    def _answer(
        self, asked: list[tuple[Header, U64]], wanted: list[Wanted], hot: list[HotRows] | None
    ) -> tuple[tuple[IndexedGroup, ...], int | None, tuple[RankGroup, ...]]:
        """What this rank owns of the step, its ticket, and each layout's share; all ranks are answered, errors too."""
        assert self._round is not None
        counts = self._round.counts_by_group(asked)
        failure: Exception | None = None
        try:
            columns = self._round.columns(asked)
            found = self.index.index(columns) if self.insert else self.index.lookup(columns)
            owned = [self._owned(g, group, counts[g]) for g, group in enumerate(found.groups)]
            used = self._used(owned, hot)
            urgent = [self._urgent(g, group.owned, used[g], hot) for g, group in enumerate(self._last)]
            bits = [
                np.concatenate(
                    [
                        np.empty(0, np.bool_),
                        *(o.early[o.asked_of_rank[r]] for o in owned),
                        *(u[g.owned.asked_of_rank[r]] for u, g in zip(urgent, self._last, strict=True)),
                    ]
                )
                for r in range(self._round.size)
            ]
        except Exception as error:
            failure = error
            before = sum((g.owned.asked_counts for g in self._last), np.zeros(self._round.size, np.int64))
            bits = [np.zeros(int(n), np.bool_) for n in counts.sum(axis=0) + before]
        everything = [*wanted, *(Wanted(g.order, g.counts) for g in self._last)]
        sizes = [sum(int(w.counts[o]) for w in everything) for o in range(self._round.size)]
        got = self._round.answer(self._step, bits, sizes, error="" if failure is None else _line(failure))
        if failure is not None:
            raise failure
        told = _by_group(got, everything)
        early, sent = told[: len(wanted)], told[len(wanted) :]
        self._told = tuple(UrgentRows(s, u) for s, u in zip(sent, urgent, strict=True)) or None
        of_batch: list[HotRows] | list[None] = [None] * len(owned)
        if hot is not None and self.node_size == 1:  # else the batch is that of a node, which has no hot rows
            of_batch = hot
        rows = zip(wanted, early, owned, of_batch, strict=True)
        groups = tuple(RankGroup.of(w.order, w.counts, e, o, h) for w, e, o, h in rows)
        self._remember(found.groups, groups, used, hot)
        return found.groups, found.ticket, groups

    def _used(self, owned: list[OwnedRows], hot: list[HotRows] | None) -> list[LocationSet]:
        """Locations of the rows of each layout that this rank owns and any rank uses, hot ones among them."""
        if hot is None:
            return [LocationSet(o.locations) for o in owned]
        return [LocationSet(np.concatenate([o.locations, h.own_locations])) for o, h in zip(owned, hot, strict=True)]

    def _urgent(self, group: int, before: OwnedRows, used: LocationSet, hot: list[HotRows] | None) -> Bool:
        """Which rows of the step before must be updated before this one."""
        urgent = used.contains(before.locations)
        if hot is not None and len(hot[group].entering_rows):
            urgent |= LocationSet(hot[group].entering_rows).contains(before.locations)
        return urgent

    def _remember(
        self,
        found: Sequence[IndexedGroup],
        groups: tuple[RankGroup, ...],
        used: list[LocationSet],
        hot: list[HotRows] | None,
    ) -> None:
        """What the next steps must know of this one."""
        if hot is not None and self._hot is not None:
            for g, (group, one, share) in enumerate(zip(found, groups, hot, strict=True)):
                self._hot.count(g, group, key_hashes(group, self._tables), one.owned.keys, share)
        if self._look_ahead:
            self._before = [*self._before[-1:], used]
            self._last = groups

    def _owned(self, group: int, found: IndexedGroup, counts: I64) -> OwnedRows:
        early = np.zeros(found.num_unique, np.bool_)
        if self._look_ahead and self._step:
            early[:] = True
            for used in self._before:
                early &= ~used[group].contains(found.locations)
        return self._owned_rows(found, counts, early)

    def _owned_rows(self, found: IndexedGroup, counts: I64, early: Bool) -> OwnedRows:
        """Deduplicated rows that ranks asked this one for, `counts` int64 of each rank."""
        asked, positions, offsets = transpose_query_ids(found.query_ids, found.num_unique)
        uids = np.array([self._tables[t].uid for t in found.tables], np.uint32)
        keys = FetchKeys(
            ids=found.unique_ids, tables=np.repeat(uids, np.diff(found.table_offsets)), missing=found.missing
        )
        return OwnedRows(found.locations, keys, asked, counts, early, positions, offsets)

    def _located(self, rows: IndexedRows, step: RankStep) -> IndexedRows:
        """The batch with the locations of the rows that are owned here; the others' are ABSENT."""
        groups = []
        for group, own in zip(rows.groups, step.groups, strict=True):
            locations = np.full(group.num_unique, ABSENT, np.uint64)
            if step.inner is not None:  # the list of what is owned here is of all that this rank collects
                groups.append(replace(group, locations=locations))
                continue
            start = int(own.counts[: step.rank].sum())
            mine = own.order[start : start + int(own.counts[step.rank])]
            locations[mine] = own.owned.locations[own.owned.asked_of_rank[step.rank]]
            groups.append(replace(group, locations=locations))
        return replace(rows, groups=tuple(groups))


def _used_here(step: RankStep) -> list[U64]:
    """Locations of the rows owned here that the step uses, of each layout."""
    none = np.empty(0, np.uint64)
    hot = [none if group.hot is None else group.hot.own_locations for group in step.groups]
    return [np.concatenate([group.owned.locations, own]) for group, own in zip(step.owning, hot, strict=True)]


def table_order(schema: Schema) -> list[int]:
    """Ordinals of the tables that features use, layout after layout, in the order of their first feature in it."""
    ordinal = {table.name: i for i, table in enumerate(schema.tables)}
    order: list[int] = []
    for group in schema.groups:
        order += dict.fromkeys(ordinal[schema.sparse[f].table] for f in group.features)
    return order


def schema_fact(schema: Schema) -> Detail:
    """What :func:`agree` compares of a schema."""
    return Detail(schema.to_dict(), plain_differences)


def empty_block(schema: Schema) -> RowBlock:
    """No rows, with the columns of `schema`."""
    fields = schema.arrow_schema(labels=bool(schema.labels))
    data = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in fields], schema=fields)
    return RowBlock(data, Source((), ()))


def _by_group(bits: list[Bool], wanted: list[Wanted]) -> list[Bool]:
    """The owners' answers as one array a layout, owner after owner."""
    parts: list[list[Bool]] = [[] for _ in wanted]
    for owner, answer in enumerate(bits):
        ends = np.cumsum([w.counts[owner] for w in wanted])
        for g, part in enumerate(np.split(answer, ends[:-1])):
            parts[g].append(part)
    return [np.concatenate(part) for part in parts]


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
