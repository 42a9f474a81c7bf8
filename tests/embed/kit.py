"""Batches and plans for tests of the stage, made without the indexer and the planner.

`ToyIndex` gives keys their places, `make_batch` builds a valid `Batch` from lists of ids, `plan_batches` plans a list
of batches by brute force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from headrace.formats.rows import Source, SourceRange
from headrace.formats.schema import Schema
from headrace.indexer.indexed import ABSENT, pack_location
from headrace.ingest.batch import Batch, BatchGroup
from headrace.ingest.step_plan import NEVER, FetchKeys, GroupPlan, Movement, StepPlan

MISSING = None
"""In a list of ids: the missing value."""


@dataclass
class ToyIndex:
    """(group, table uid, missing, id) -> location; places are handed out in a fixed scattered order."""

    places: dict = field(default_factory=dict)

    def locate(self, group, uid, missing, raw, *, insert):
        key = (group, uid, missing, raw)
        if key not in self.places:
            if not insert:
                return int(ABSENT)
            n = sum(k[0] == group for k in self.places)
            self.places[key] = pack_location(chunk=(n % 3) * 70_000 + group, offset=(n * 37) % 16_384)
        return self.places[key]

    def keys(self, group):
        """(locations, ids, tables, missing) of a group's keys, as arrays."""
        found = [(place, *key[1:]) for key, place in self.places.items() if key[0] == group]
        locations, tables, missing, ids = zip(*found, strict=True) if found else ((), (), (), ())
        return (
            np.array(locations, np.uint64),
            np.array(ids, np.uint64),
            np.array(tables, np.uint32),
            np.array(missing, bool),
        )


def make_batch(schema: Schema, ids, index: ToyIndex, *, num_rows=None, weights=None, insert=True, first_row=0) -> Batch:
    """A batch of `ids`: feature name -> one list of ids a row (an id is an int, or MISSING).

    `weights` gives per-sample weights: feature name -> one list of floats a row. No plan.
    """
    num_rows = len(next(iter(ids.values()))) if num_rows is None else num_rows
    groups = tuple(_group(schema, g, ids, index, num_rows, weights, insert) for g in schema.groups)
    return Batch(
        dense=torch.zeros(num_rows, 0),
        labels=None,
        groups=groups,
        valid=None,
        plan=None,
        source=Source(("part-0.tsv",), (SourceRange(0, first_row, num_rows),)),
        schema=schema,
    )


def _group(schema, group, ids, index, num_rows, weights, insert) -> BatchGroup:
    table_uid = {t.name: t.uid for t in schema.tables}
    seen: dict[tuple, int] = {}
    query_ids, lengths, flat_weights = [], [], []
    for position in group.features:
        feature = schema.sparse[position]
        for b in range(num_rows):
            bag = ids[feature.name][b]
            lengths.append(len(bag))
            flat_weights += weights[feature.name][b] if weights else []
            for raw in bag:
                key = (table_uid[feature.table], raw is MISSING, 0 if raw is MISSING else raw % 2**64)
                query_ids.append(seen.setdefault(key, len(seen)))
    query_ids = np.array(query_ids, np.int64)
    counts = np.bincount(query_ids, minlength=len(seen)).astype(np.int64)
    return BatchGroup(
        features=group.features,
        query_ids=torch.from_numpy(query_ids),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),
        weights=torch.tensor(flat_weights, dtype=torch.float32) if weights else None,
        unique_ids=torch.from_numpy(np.array([k[2] for k in seen], np.uint64)),
        unique_tables=torch.from_numpy(np.array([k[0] for k in seen], np.uint32)),
        missing=torch.from_numpy(np.array([k[1] for k in seen], bool)),
        locations=torch.from_numpy(np.array([index.locate(group.ordinal, *k, insert=insert) for k in seen], np.uint64)),
        positions=torch.from_numpy(np.argsort(query_ids, kind="stable").astype(np.int64)),
        position_offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)),
        slots=torch.full((len(seen),), -1, dtype=torch.int64),
    )


def random_ids(schema: Schema, num_rows: int, rng: np.random.Generator, *, distinct=20):
    """Ids for `make_batch`: multi-hot bags of 0 to 4 ids with duplicates, one-hot ones of one, some missing."""
    ids = {}
    for feature in schema.sparse:
        sizes = rng.integers(0, 5, num_rows) if feature.multi_hot else np.ones(num_rows, int)
        drawn = (rng.integers(0, distinct, int(n)).tolist() for n in sizes)
        ids[feature.name] = [[MISSING if raw == 0 else raw * 2**59 + raw for raw in bag] for bag in drawn]
    return ids


def plan_batches(
    batches: Sequence[Batch],
    *,
    window=0,
    run=1,
    hot=0,
    spare: int | None = None,
    rng: np.random.Generator | None = None,
) -> list[Batch]:
    """The same batches with plans, by brute force.

    ``spare=None`` evicts every row as soon as neither this step nor (with a window) the next one uses it; a number
    keeps dead rows until their slot is needed, in an arena with so many more slots than needed, and evicts a random
    one.
    `hot` rows of the first batch are pinned in the slots [0, hot).
    """
    rng = rng or np.random.default_rng(0)
    groups = [
        _plan_group([b.groups[g] for b in batches], window, hot, spare, rng) for g in range(len(batches[0].groups))
    ]
    return [_with_plan(batches, t, run, window, [plans[t] for plans in groups]) for t in range(len(batches))]


def _with_plan(batches, t, run, window, group_plans) -> Batch:
    batch = batches[t]
    following = batches[t + 1] if t + 1 < len(batches) else None
    plan = StepPlan(
        run=run,
        step=t,
        window=window,
        groups=tuple(group_plans),
        row_bytes=tuple(0 for _ in group_plans),
        late_keys=tuple(_fetch_keys(g, p.late) for g, p in zip(batch.groups, group_plans, strict=True)),
        ahead_keys=tuple(
            _fetch_keys(following.groups[i] if following else None, p.ahead) for i, p in enumerate(group_plans)
        ),
    )
    slots = [replace(g, slots=torch.from_numpy(p.slots)) for g, p in zip(batch.groups, group_plans, strict=True)]
    return replace(batch, plan=plan, groups=tuple(slots))


def _fetch_keys(group: BatchGroup | None, movement: Movement) -> FetchKeys:
    if group is None:
        return FetchKeys(np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, bool))
    at = movement.fetch_unique
    return FetchKeys(group.unique_ids.numpy()[at], group.unique_tables.numpy()[at], group.missing.numpy()[at])


class _Model:
    """Which location is in which slot, and when slots and rows were last moved out."""

    def __init__(self, capacity, pinned, rng):
        self.slot_of: dict[int, int] = {}
        self.reserved = {location: slot for slot, location in enumerate(pinned)}
        self.free = list(range(len(pinned), capacity))
        self.vacated: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.rng = rng

    def move(self, number, wanted, keep, *, eager) -> Movement:
        """Bring `wanted` (location -> unique position) in; rows in `keep` stay."""
        evict, fetch = [], []
        new = [x for x in wanted if x not in self.slot_of]
        victims = [x for x in self.slot_of if x not in keep and x not in wanted and x not in self.reserved]
        self.rng.shuffle(victims)
        while victims and (eager or len(self.free) < sum(x not in self.reserved for x in new)):
            location = victims.pop()
            slot = self.slot_of.pop(location)
            evict.append((location, slot))
            self.free.append(slot)
            self.vacated[slot] = self.written[location] = number
        self.rng.shuffle(self.free)
        for location in new:
            slot = self.reserved[location] if location in self.reserved else self.free.pop()
            self.slot_of[location] = slot
            waits = (self.written.get(location, NEVER), self.vacated.get(slot, NEVER))
            fetch.append((location, slot, wanted[location], *waits))
        columns = list(zip(*fetch, strict=True)) if fetch else [()] * 5
        return Movement(
            evict_locations=np.array([e[0] for e in evict], np.uint64),
            evict_slots=np.array([e[1] for e in evict], np.int64),
            fetch_locations=np.array(columns[0], np.uint64),
            fetch_slots=np.array(columns[1], np.int64),
            fetch_unique=np.array(columns[2], np.int64),
            fetch_wait=np.array(columns[3], np.int64),
            slot_wait=np.array(columns[4], np.int64),
        )


def _plan_group(groups: Sequence[BatchGroup], window, hot, spare, rng) -> list[GroupPlan]:
    used = [{x: i for i, x in enumerate(g.locations.numpy().tolist())} for g in groups] + [{}]
    pinned = list(used[0])[:hot]
    most = max(len(set(used[t]) | set(used[t + 1]) | set(pinned)) for t in range(len(groups)))
    capacity = most + (spare or 0)
    model = _Model(capacity, pinned, rng)
    plans = []
    for t, group in enumerate(groups):
        late = model.move(2 * t, used[t], set(), eager=spare is None)
        ahead = model.move(2 * t + 1, used[t + 1] if window else {}, set(used[t]), eager=spare is None and window > 0)
        plans.append(
            GroupPlan(
                slots=np.array([model.slot_of[x] for x in used[t]], np.int64),
                hot=np.array([x in pinned for x in used[t]], bool),
                urgent=np.array([x in used[t + 1] for x in used[t]], bool),
                late=late,
                ahead=ahead,
                hits=group.num_unique - len(late.fetch_slots),
                resident=len(model.slot_of),
                capacity=capacity,
                r_rows=len(pinned),
            )
        )
    return plans
