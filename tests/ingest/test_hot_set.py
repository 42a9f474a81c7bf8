"""HotSet and KeyCounts against dictionaries; over ranks they run in tests/ranks."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.indexer.indexed import ABSENT
from headrace.ingest.hot_set import NO_SLOT, HotSet, KeyCounts, empty_hot_set
from headrace.ingest.step_plan import FetchKeys

KEYS = st.tuples(st.integers(0, 9), st.integers(0, 2), st.booleans())


def arrays(keys: list[tuple[int, int, bool]]) -> FetchKeys:
    return FetchKeys(
        ids=np.array([key[0] for key in keys], np.uint64),
        tables=np.array([key[1] for key in keys], np.uint32),
        missing=np.array([key[2] for key in keys], np.bool_),
    )


def hash_of(key: tuple[int, int, bool]) -> int:
    return key[0] % 7  # keys of one hash: at most one of them is in R


@given(held=st.lists(KEYS, unique_by=hash_of, max_size=7), free=st.sets(st.integers(0, 6)), asked=st.lists(KEYS))
def test_a_key_is_found_in_its_slot_or_not_at_all(held, free, asked):
    hashes = np.array([hash_of(key) for key in held], np.uint64)
    used = np.array([slot not in free for slot in range(len(held))], np.bool_)
    one = HotSet(arrays(held), hashes, used, np.full(len(held), ABSENT, np.uint64))
    found = one.find(arrays(asked), np.array([hash_of(key) for key in asked], np.uint64))
    slots = {key: slot for slot, key in enumerate(held) if used[slot]}
    assert found.tolist() == [slots.get(key, NO_SLOT) for key in asked]


def test_nothing_is_in_an_empty_set():
    keys = arrays([(1, 0, False)])
    assert empty_hot_set().find(keys, np.array([3], np.uint64)).tolist() == [NO_SLOT]
    assert dataclasses.is_dataclass(HotSet)


@given(
    parts=st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), max_size=20), max_size=6),
    most=st.integers(0, 40),
)
def test_the_keys_of_most_batches_come_first(parts, most):
    counts, total = KeyCounts(), Counter()
    for part in parts:
        part = list(dict(part).items())  # a location once a batch
        locations = np.array([location for location, _ in part], np.uint64)
        told = np.array([count for _, count in part], np.int64)
        keys = arrays([(location + 100, location % 3, location % 2 == 0) for location, _ in part])
        counts.add(locations, np.uint64(1000) - locations, keys, told)
        total.update(dict(part))
    expected = sorted(total, key=lambda location: (-total[location], 1000 - location))[:most]
    records, locations = counts.top(most)
    assert locations.tolist() == expected
    assert records["count"].tolist() == [total[location] for location in expected]
    assert records["hash"].tolist() == [1000 - location for location in expected]
    assert records["id"].tolist() == [location + 100 for location in expected]
    assert records["table"].tolist() == [location % 3 for location in expected]
    assert records["missing"].tolist() == [location % 2 for location in [location + 1 for location in expected]]
