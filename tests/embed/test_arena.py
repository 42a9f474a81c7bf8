"""The arena: movements do what the plan says, and plans that do not fit are refused whole."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
import torch

from headrace.embed.arena import Arena, PlanError
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.initializer import Constant
from headrace.embed.optimizers import UpdateRule
from headrace.ingest.step_plan import NEVER, FetchKeys, Movement

SGD = UpdateRule(name="sgd", lr=1.0)


def movement(evict=(), fetch=(), *, fetch_wait=None, slot_wait=None):
    """`evict` and `fetch` are (location, slot) pairs."""
    e, f = (np.array(x, np.uint64).reshape(-1, 2) for x in (evict, fetch))
    never = np.full(len(f), NEVER, np.int64)
    moved = Movement(
        evict_locations=e[:, 0].copy(),
        evict_slots=e[:, 1].astype(np.int64),
        fetch_locations=f[:, 0].copy(),
        fetch_slots=f[:, 1].astype(np.int64),
        fetch_unique=np.arange(len(f)),
        fetch_wait=never if fetch_wait is None else np.array(fetch_wait),
        slot_wait=never if slot_wait is None else np.array(slot_wait),
    )
    return moved, FetchKeys(f[:, 0].copy(), np.zeros(len(f), np.uint32), np.zeros(len(f), bool))


@pytest.fixture
def store():
    return ChunkStore(1, 0, initializer=Constant(value=10))


@pytest.fixture
def arena(store):
    arena = Arena(3, store)
    move(arena, *movement(fetch=[(100, 2), (101, 0)]), 0)
    return arena


def move(arena, moved, keys, number):
    arena.check(moved, number)
    run = arena.begin(moved, keys)
    run.vacate()
    run.land()
    run.fetch()


def gather(arena, *pairs):
    out = np.empty((len(pairs), 1), np.float32)
    slots = np.array([p[1] for p in pairs], np.int64)
    arena.check_gathered(slots, np.array([p[0] for p in pairs], np.uint64))
    arena.source(slots).read(out)
    return out.ravel().tolist()


def test_fetched_rows_start_from_the_initial_vector(arena, store):
    assert gather(arena, (101, 0), (100, 2)) == [10, 10]
    assert arena.num_resident == 2
    assert store.num_written == 0


def test_an_updated_row_is_written_back_when_evicted_and_comes_back(arena, store):
    arena.update(np.array([2]), torch.ones(1, 1), SGD)
    move(arena, *movement(evict=[(100, 2)], fetch=[(102, 2)]), 1)
    assert store.export()[1].tolist() == [[9]]
    assert gather(arena, (102, 2)) == [10]
    move(arena, *movement(fetch=[(100, 1)], fetch_wait=[1]), 2)
    assert gather(arena, (100, 1), (101, 0)) == [9, 10]


def test_a_clean_row_is_not_written_back(arena, store):
    # it may belong to a key that was looked up ahead and never delivered, and whose place another key gets
    move(arena, *movement(evict=[(100, 2)]), 1)
    arena.flush()
    assert store.num_written == 0


def test_flush_writes_and_keeps_resident(arena, store):
    arena.update(np.array([0]), torch.ones(1, 1), SGD)
    arena.flush()
    assert [x.tolist() for x in store.export()] == [[101], [[9]]]
    assert gather(arena, (101, 0)) == [9]
    store.forget(np.array([101], np.uint64))
    arena.flush()
    assert store.num_written == 0  # it is clean now


@pytest.mark.parametrize(
    ("moved", "message"),
    [
        (movement(evict=[(100, 0)]), "evicts row 0x64 in slot 0, which does not hold it"),
        (movement(evict=[(100, 1)]), "evicts row 0x64 in slot 1, which does not hold it"),
        (movement(fetch=[(102, 2)]), "fetches into slot 2, which is not free"),
        (movement(fetch=[(102, 1), (103, 1)]), "fetches two rows into one slot"),
        (movement(fetch=[(102, 3)]), "slots 3 to 3 in an arena of 3 rows"),
        (movement(fetch=[(102, 1)], fetch_wait=[2]), r"waits for the later movement 2 \(fetch_wait\)"),
        (movement(fetch=[(102, 1)], slot_wait=[9]), r"waits for the later movement 9 \(slot_wait\)"),
    ],
)
def test_a_movement_that_does_not_fit_is_refused_whole(arena, store, moved, message):
    with pytest.raises(PlanError, match=message):
        move(arena, *moved, 1)
    assert gather(arena, (100, 2), (101, 0)) == [10, 10]
    assert arena.num_resident == 2


def test_gathering_a_row_from_a_wrong_slot_is_refused(arena):
    with pytest.raises(PlanError, match="gathers row 0x64 in slot 0"):
        gather(arena, (100, 0))
    with pytest.raises(PlanError, match="slots -1 to -1"):
        gather(arena, (100, -1))


def test_an_arena_takes_memory_as_it_is_used(store):
    rss = psutil.Process().memory_info
    before = rss().rss
    arena = Arena(1 << 20, ChunkStore(256, 0))  # 1 GiB of rows
    move(arena, *movement(fetch=[(100, 1 << 19)]), 0)
    arena.flush()
    assert rss().rss - before < 16 << 20
    with pytest.raises(ValueError, match="capacity=-1"):
        Arena(-1, store)


def test_a_row_that_left_lands_as_it_was_when_it_left(arena, store):
    arena.update(np.array([2]), torch.ones(1, 1), SGD)
    run = arena.begin(*movement(evict=[(100, 2)], fetch=[(102, 2)]))
    assert (run.num_written_back, run.num_fetched) == (1, 1)
    run.vacate()
    run.fetch()
    arena.update(np.array([2]), torch.ones(1, 1), SGD)  # of the row that is there now
    assert store.num_written == 0
    run.land()
    assert [x.tolist() for x in store.export()] == [[100], [[9]]]
    assert gather(arena, (102, 2)) == [9]
