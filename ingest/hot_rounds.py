"""R from round to round: which rows of a batch are in it, what all ranks touch of it, and when it changes.

All ranks call the methods in the same order, once a round: `choose`, `find`, `touch`, `count`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.indexer.exchange.channel import Channel
from headrace.indexer.indexed import ABSENT, U64, IndexedGroup
from headrace.ingest.hot_set import KEY_RECORD, NO_SLOT, KeyCounts, empty_hot_set, next_hot_set
from headrace.ingest.rank_step import HotRows
from headrace.ingest.step_plan import I64, FetchKeys

_RECORDS_LIMIT = 1 << 32


class HotRounds:
    """R of one run: at most `most` rows of each layout, chosen anew before every `every`-th round.

    `epoch` counts the changes. It takes effect for the very round before which it is chosen: no batch of that step has
    been classified yet, on any rank.
    """

    def __init__(self, channel: Channel, num_groups: int, *, most: int, every: int) -> None:
        self._channel = channel
        self._most, self._every = most, every
        self._sets = [empty_hot_set() for _ in range(num_groups)]
        self._counts = [KeyCounts() for _ in range(num_groups)]
        self._entering: list[tuple[I64, I64]] = []
        self._touched_counts: list[I64] = []
        self._nothing()
        self.epoch = 0

    def _nothing(self) -> None:
        none = np.empty(0, np.int64), np.zeros(self._channel.size, np.int64)
        self._entering = [none] * len(self._sets)

    def choose(self, step: int) -> None:
        """Before the requests of `step`: take a new R, if it is time."""
        self._nothing()
        if step == 0 or step % self._every:
            return
        rank = self._channel.rank
        for g, before in enumerate(self._sets):
            records, locations = self._counts[g].top(self._most)
            parts = self._channel.all_gather_bytes(
                records.tobytes(), f"the hot rows of step {step}", limit=_RECORDS_LIMIT
            )
            told = [np.frombuffer(part, KEY_RECORD) for part in parts]
            self._sets[g], slots, counts = next_hot_set(before, told, locations, rank, self._most)
            self._entering[g] = slots, counts
            self._counts[g].clear()
        self.epoch += 1

    def find(self, group: int, keys: FetchKeys, hashes: U64) -> I64:
        """Slots int64 [U] of the unique rows of this rank's batch; NO_SLOT for the cold ones."""
        return self._sets[group].find(keys, hashes)

    def touch(self, slots: Sequence[I64], step: int) -> list[HotRows]:
        """What each layout has of R in `step`; `slots` are those that `find` gave. Bits travel, one a row of R."""
        sizes = [one.num_slots for one in self._sets]
        mine = np.zeros(sum(sizes), np.bool_)
        starts = np.cumsum([0, *sizes])
        for start, found in zip(starts, slots, strict=False):
            mine[start + found[found != NO_SLOT]] = True
        if not len(mine):
            return [self._hot_rows(g, found, np.empty(0, np.int64)) for g, found in enumerate(slots)]
        bits = self._channel.all_gather(np.packbits(mine), f"the hot rows that it touches at step {step}")
        counts = np.unpackbits(bits, axis=1, count=len(mine)).sum(axis=0, dtype=np.int64)
        self._touched_counts = np.split(counts, starts[1:-1])
        return [self._hot_rows(g, found, np.flatnonzero(self._touched_counts[g])) for g, found in enumerate(slots)]

    def _hot_rows(self, group: int, found: I64, touched: I64) -> HotRows:
        one = self._sets[group]
        own = np.flatnonzero(one.locations[touched] != ABSENT)
        entering, counts = self._entering[group]
        start = int(counts[: self._channel.rank].sum())
        mine = entering[start : start + int(counts[self._channel.rank])]
        unique = np.flatnonzero(found != NO_SLOT)
        return HotRows(
            num_slots=one.num_slots,
            unique=unique,
            slots=found[unique],
            touched=touched,
            touched_tables=one.keys.tables[touched],
            own=own,
            own_locations=one.locations[touched[own]],
            own_keys=one.keys_at(touched[own]),
            entering=entering,
            entering_counts=counts,
            entering_rows=one.locations[mine],
            entering_keys=one.keys_at(mine),
        )

    def count(self, group: int, found: IndexedGroup, hashes: U64, keys: FetchKeys, hot: HotRows) -> None:
        """Remember who was asked for: rows `found` here, and the hot ones that this rank owns."""
        asked = np.bincount(found.query_ids, minlength=found.num_unique).astype(np.int64)
        counts = self._counts[group]
        counts.add(found.locations, hashes, keys, asked)
        if len(hot.own):
            slots = hot.touched[hot.own]
            counts.add(
                hot.own_locations, self._sets[group].hashes[slots], hot.own_keys, self._touched_counts[group][slots]
            )
