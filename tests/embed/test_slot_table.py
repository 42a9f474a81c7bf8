"""Which row is in which slot: a gather is checked against a movement that is not done yet as if it had been done."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.embed.slot_table import PlanError, SlotTable
from headrace.ingest.step_plan import NEVER, Movement

CAPACITY = 6
places = st.integers(0, 9)
contents = st.dictionaries(st.integers(0, CAPACITY - 1), places)  # slot -> location


def movement(evict, fetch):
    never = np.full(len(fetch), NEVER, np.int64)
    return Movement(
        evict_locations=np.array(list(evict.values()), np.uint64),
        evict_slots=np.array(list(evict), np.int64),
        fetch_locations=np.array(list(fetch.values()), np.uint64),
        fetch_slots=np.array(list(fetch), np.int64),
        fetch_unique=np.arange(len(fetch)),
        fetch_wait=never,
        slot_wait=never,
    )


def table_of(held):
    table = SlotTable(CAPACITY)
    table.move(movement({}, held))
    return table


def refusal(look):
    try:
        look()
    except PlanError as error:
        return str(error)
    return None


@given(held=contents, evict=st.sets(st.integers(0, CAPACITY - 1)), fetch=contents, gathered=st.data())
def test_a_gather_is_refused_just_as_after_the_movement(held, evict, fetch, gathered):
    evict = {slot: held[slot] for slot in evict if slot in held}
    fetch = {slot: place for slot, place in fetch.items() if slot not in held or slot in evict}
    after = {slot: place for slot, place in held.items() if slot not in evict} | fetch
    pairs = gathered.draw(st.lists(st.sampled_from([*held.items(), *after.items(), (0, 0), (5, 9)])))
    slots, locations = np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.uint64)
    table, first = table_of(held), movement(evict, fetch)
    table.check(first, 2)
    expected = refusal(lambda: table_of(after).check_gathered(slots, locations, None))
    for _ in range(2):  # the look leaves nothing behind
        assert refusal(lambda: table.check_gathered(slots, locations, first)) == expected
    assert (expected is None) == all(after.get(slot) == place for slot, place in pairs)
    table.check_held(*(np.array(list(x), t) for x, t in ((held, np.int64), (held.values(), np.uint64))), "holds")
    assert table.num_taken == len(held)


def test_a_slot_outside_the_arena_is_refused_before_anything_is_looked_up():
    table = table_of({1: 4})
    for first in (None, movement({1: 4}, {})):
        with pytest.raises(PlanError, match=f"in an arena of {CAPACITY} rows"):
            table.check_gathered(np.array([CAPACITY]), np.array([4], np.uint64), first)
