"""R over ranks: the keys whose rows every rank holds, and how the owners choose them from what is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer.indexed import ABSENT
from headrace.ingest.location_set import LocationMap
from headrace.ingest.step_plan import I64, U32, U64, Bool, FetchKeys

NO_SLOT = -1
KEY_RECORD = np.dtype([("count", "<i8"), ("hash", "<u8"), ("id", "<u8"), ("table", "<u4"), ("missing", "<u4")])
"""A key as owners tell it to each other: in how many ranks' batches it was, and what it is."""

Records = npt.NDArray[np.void]


@dataclass(frozen=True, eq=False)
class HotSet:
    """The keys of R of one layout, by slot; the same on all ranks, but for `locations`.

    `keys` are those of slots [0, n), `used` bool [n] is False for slots that are free, `hashes` uint64 [n] are all
    different among the used ones. `locations` uint64 [n] are those of rows that this rank owns, else ABSENT.
    """

    keys: FetchKeys
    hashes: U64
    used: Bool
    locations: U64

    @property
    def num_slots(self) -> int:
        return len(self.used)

    def find(self, keys: FetchKeys, hashes: U64) -> I64:
        """int64 [U]: the slot of each key, NO_SLOT for those that are not in R."""
        slots = self._slot_of_hash.find(hashes)
        at = np.flatnonzero(slots != NO_SLOT)
        found = slots[at]
        same = (self.keys.ids[found] == keys.ids[at]) & (self.keys.tables[found] == keys.tables[at])
        same &= self.keys.missing[found] == keys.missing[at]
        slots[at[~same]] = NO_SLOT
        return slots

    @cached_property
    def _slot_of_hash(self) -> LocationMap:
        """A key whose hash is ABSENT itself is never found: it is as one that is not in R, on all ranks."""
        return LocationMap(np.where(self.used, self.hashes, ABSENT))

    def keys_at(self, slots: I64) -> FetchKeys:
        return FetchKeys(ids=self.keys.ids[slots], tables=self.keys.tables[slots], missing=self.keys.missing[slots])


def empty_hot_set() -> HotSet:
    return HotSet(
        FetchKeys(ids=np.empty(0, np.uint64), tables=np.empty(0, np.uint32), missing=np.empty(0, np.bool_)),
        np.empty(0, np.uint64),
        np.empty(0, np.bool_),
        np.empty(0, np.uint64),
    )


class KeyCounts:
    """In how many ranks' batches each key of this owner was since `clear`."""

    def __init__(self) -> None:
        self._parts: list[tuple[U64, U64, FetchKeys, I64]] = []
        self._rows = self._merged = 0

    def add(self, locations: U64, hashes: U64, keys: FetchKeys, counts: I64) -> None:
        self._parts.append((locations, hashes, keys, counts))
        self._rows += len(locations)
        if self._rows > max(1 << 20, 2 * self._merged):
            self._merge()

    def clear(self) -> None:
        self._parts, self._rows, self._merged = [], 0, 0

    def top(self, most: int) -> tuple[Records, U64]:
        """Records of the `most` keys that were in most batches, ties by hash, and their locations uint64."""
        self._merge()
        if not self._parts:
            return np.empty(0, KEY_RECORD), np.empty(0, np.uint64)
        locations, hashes, keys, counts = self._parts[0]
        candidates = np.arange(len(counts))
        if most < len(counts):  # only those that may be among them need an order
            least = np.partition(counts, len(counts) - most)[len(counts) - most] if most else np.iinfo(np.int64).max
            candidates = np.flatnonzero(counts >= least)
        order = candidates[np.lexsort((hashes[candidates], -counts[candidates]))[:most]]
        records = np.empty(len(order), KEY_RECORD)
        records["count"], records["hash"], records["id"] = counts[order], hashes[order], keys.ids[order]
        records["table"], records["missing"] = keys.tables[order], keys.missing[order]
        return records, locations[order]

    def _merge(self) -> None:
        if not self._parts:
            return
        locations = np.concatenate([part[0] for part in self._parts])
        counts = np.concatenate([part[3] for part in self._parts])
        order = np.argsort(locations)
        ordered = locations[order]
        starts = np.flatnonzero(np.concatenate([[len(ordered) > 0], ordered[1:] != ordered[:-1]]))
        every, first = ordered[starts], order[starts]
        keys = FetchKeys(
            ids=np.concatenate([part[2].ids for part in self._parts])[first],
            tables=np.concatenate([part[2].tables for part in self._parts])[first],
            missing=np.concatenate([part[2].missing for part in self._parts])[first],
        )
        total = np.add.reduceat(counts[order], starts) if len(starts) else np.empty(0, np.int64)
        hashes = np.concatenate([part[1] for part in self._parts])[first]
        self._parts = [(every, hashes, keys, total)]
        self._rows = self._merged = len(every)


def next_hot_set(before: HotSet, told: Sequence[Records], own: U64, rank: int, most: int) -> tuple[HotSet, I64, I64]:
    """The new set from the records of all owners, its slots that get another row, ascending by owner, and how many of
    them each owner has, int64 [W].

    The `most` keys with the largest counts, ties by hash; of keys with one hash only the first. A key that stays keeps
    its slot; new ones take free slots, lowest first, then new slots. `own` are the locations of ``told[rank]``.
    """
    owners = np.repeat(np.arange(len(told)), [len(part) for part in told])
    records = np.concatenate(told)
    locations = np.full(len(records), ABSENT, np.uint64)
    locations[owners == rank] = own
    order = np.lexsort((records["missing"], records["table"], records["id"], records["hash"], -records["count"]))
    _, first = np.unique(records["hash"][order], return_index=True)
    chosen = order[np.sort(first)[:most]]
    records, owners, locations = records[chosen], owners[chosen], locations[chosen]
    keys = FetchKeys(
        ids=records["id"].copy(), tables=records["table"].copy(), missing=records["missing"].astype(np.bool_)
    )
    slots = before.find(keys, records["hash"])
    new = np.flatnonzero(slots == NO_SLOT)
    kept = np.zeros(before.num_slots, np.bool_)
    kept[slots[slots != NO_SLOT]] = True
    free = np.flatnonzero(~kept)[: len(new)]
    slots[new] = np.concatenate([free, before.num_slots + np.arange(len(new) - len(free))])
    size = max(before.num_slots, int(slots.max(initial=-1)) + 1)
    result = HotSet(
        FetchKeys(
            ids=_at(slots, keys.ids, size), tables=_at(slots, keys.tables, size), missing=_at(slots, keys.missing, size)
        ),
        _at(slots, records["hash"].copy(), size),
        _at(slots, np.ones(len(slots), np.bool_), size),
        np.where(_at(slots, owners == rank, size), _at(slots, locations, size), ABSENT),
    )
    by_owner = new[np.argsort(owners[new], kind="stable")]
    return result, slots[by_owner], np.bincount(owners[new], minlength=len(told)).astype(np.int64)


def _at(slots: I64, values: U64 | U32 | Bool, size: int) -> Any:
    out = np.zeros(size, values.dtype)
    out[slots] = values
    return out
