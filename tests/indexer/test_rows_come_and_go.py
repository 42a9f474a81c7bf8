"""Rows that are removed, places that are taken again, counts of uses, and the memory of results."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from headrace.indexer._dit_py import PyDIT
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import ABSENT, CHUNK_ROWS, IdColumn, IndexedGroup, IndexTable, pack_location
from tests.support.index_batches import assert_same_ids, column

TABLES = (IndexTable(10, 0), IndexTable(20, 1), IndexTable(30, 0))


def put(dit: DIT, *columns: IdColumn) -> list[list[int]]:
    """Index and commit without counting; locations of each group."""
    out = dit.index(columns)
    assert out.ticket is not None
    dit.commit(out.ticket)
    return [group.locations.tolist() for group in out.groups]


# --- places


def test_removed_rows_are_gone_and_come_again_as_new(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1, owner_rank=4) as dit:
        first, _ = put(dit, column(0, [1, 2, 3], [False, False, True]))
        out = dit.remove([column(0, [9, 2, 2, 0], [False, False, False, True]), column(2, [1])])
        assert out.ticket is None
        assert out.groups[0].query_ids.tolist() == [0, 1, 1, 2, 3]
        assert out.groups[0].locations.tolist() == [ABSENT, first[1], first[2], ABSENT]
        assert not out.groups[0].is_new.any()
        assert (len(dit), dit.num_provisional, dit.stats().free_places) == (1, 0, 2)
        found = dit.lookup([column(0, [1, 2, 0], [False, False, True])])
        assert found.groups[0].locations.tolist() == [first[0], ABSENT, ABSENT]
        again = dit.index([column(0, [2, 1])]).groups[0]
        assert again.is_new.tolist() == [True, False]
        assert again.locations.tolist() == [first[1], first[0]]


def test_freed_places_are_taken_lowest_first_each_group_its_own(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        put(dit, column(0, range(6)), column(1, range(6)))  # places 0.. and CHUNK_ROWS..
        dit.remove([column(0, [4])])
        dit.remove([column(0, [1, 3]), column(1, [5, 0])])  # the order in which places become free does not matter
        zeroth, first = put(dit, column(2, [100, 101, 102, 103]), column(1, [100, 101, 102]))
        assert zeroth == [1, 3, 4, 6]
        assert first == [CHUNK_ROWS, CHUNK_ROWS + 5, CHUNK_ROWS + 6]
        assert dit.stats().free_places == 0


def test_holes_of_earlier_chunks_come_before_the_last_chunks_next_place(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        put(dit, IdColumn(0, np.arange(CHUNK_ROWS + 10, dtype=np.uint64)))
        dit.remove([column(0, [CHUNK_ROWS + 2, CHUNK_ROWS - 1, 64])])
        (places, _) = put(dit, column(0, range(1 << 40, (1 << 40) + 5)))
        expected = [(0, 64), (0, CHUNK_ROWS - 1), (1, 2), (1, 10), (1, 11)]
        assert places == [pack_location(chunk, offset) for chunk, offset in expected]
        dit.remove([column(0, [CHUNK_ROWS + 3])])
        assert put(dit, column(0, [1 << 41]))[0] == [pack_location(1, 3)]
        dit.remove([column(0, [70])])  # before the chunk where the last hole was found
        assert put(dit, column(0, [1 << 42]))[0] == [70]


def test_undo_frees_retaken_places_again(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        put(dit, column(0, range(5)))
        dit.remove([column(0, [1, 3])])
        for _ in range(3):
            out = dit.index([column(0, [50, 51, 52])])
            assert out.groups[0].locations.tolist() == [1, 3, 5]
            assert dit.stats().free_places == 0
            assert dit.lookup([column(0, [50])]).groups[0].locations.tolist() == [ABSENT]
            dit.undo_after(None)
            assert dit.stats().free_places == 2
        first = dit.index([column(0, [60])])
        dit.index([column(0, [61, 62])])
        assert first.ticket is not None
        dit.commit(first.ticket)
        dit.undo_after(None)
        assert put(dit, column(0, [63, 64]))[0] == [3, 5]
        assert dit.lookup([column(0, [60])]).groups[0].locations.tolist() == [1]


def test_removal_is_refused_while_tickets_are_open(index_class: type[DIT]) -> None:
    with index_class(TABLES) as dit:
        put(dit, column(0, [1]))
        dit.index([column(0, [2])])
        dit.index([])
        with pytest.raises(RuntimeError, match="2 tickets are open"):
            dit.remove([column(0, [1])])
        assert (len(dit), dit.num_provisional, dit.stats().free_places) == (1, 1, 0)
        dit.undo_after(None)
        dit.remove([column(0, [1])])
        assert len(dit) == 0
        with pytest.raises(ValueError, match="table"):
            dit.remove([column(3, [1])])


def test_emptied_and_refilled_again_and_again_costs_no_memory_and_no_probes() -> None:
    with DIT(TABLES, num_shards=4, multiplier=0x9E3779B97F4A7C15) as dit:
        ids = np.arange(3000, dtype=np.uint64)
        after_first = None
        for round_ in range(200):
            places, _ = put(dit, IdColumn(0, ids + np.uint64(round_ * 3000)))
            assert len(set(places)) == 3000
            dit.remove([IdColumn(0, ids + np.uint64(round_ * 3000))])
            stats = dit.stats()
            assert (stats.rows, stats.provisional) == (0, 0)
            if round_ == 20:  # keys of other rounds lie a little otherwise: one more growth may come, not a trend
                after_first = stats
        assert after_first is not None
        assert stats.capacity <= after_first.capacity * 1.3
        assert stats.nbytes <= after_first.nbytes * 1.3
        assert stats.free_places <= 3000 * 1.1
        assert stats.max_probe_length <= 64  # a run of full lines, in shards that may be filled up to 0.88
        assert stats.mean_probe_length < 2


def test_the_same_rows_removed_and_brought_back_change_no_figure() -> None:
    with DIT(TABLES, num_shards=4, multiplier=0x9E3779B97F4A7C15) as dit:
        ids = [IdColumn(0, np.arange(3000, dtype=np.uint64)), IdColumn(1, np.arange(500, dtype=np.uint64))]
        first = put(dit, *ids)
        dit.remove(ids)
        assert put(dit, *ids) == first
        before = dit.stats()
        for _ in range(200):
            dit.remove(ids)
            assert (len(dit), dit.stats().free_places) == (0, 3500)
            assert put(dit, *ids) == first
        after = dit.stats()
        assert (after.capacity, after.growths, after.nbytes, after.max_probe_length) == (
            before.capacity,
            before.growths,
            before.nbytes,
            before.max_probe_length,
        )


def test_places_after_removal_and_a_restore_are_those_of_the_original(index_class: type[DIT]) -> None:
    rng = np.random.default_rng(4)

    def batch() -> list[IdColumn]:
        return [IdColumn(t, rng.integers(0, 600, 100).astype(np.uint64), rng.random(100) < 0.01) for t in (0, 1, 2)]

    with index_class(TABLES, num_shards=4) as original:
        for _ in range(3):
            put(original, *batch())
        original.remove(batch())
        put(original, *batch())
        original.remove(batch())
        with index_class(TABLES, num_shards=4) as copy:
            copy.restore(original.snapshot())
            assert copy.stats().free_places == original.stats().free_places > 20
            for _ in range(3):
                columns = batch()
                assert put(copy, *columns) == put(original, *columns)
                assert_same_ids(copy.remove(columns[:2]), original.remove(columns[:2]))
            assert copy.snapshot().equals(original.snapshot(), check_metadata=True)


# --- uses


def test_batches_count_when_they_are_committed_and_not_before(index_class: type[DIT]) -> None:
    with index_class(TABLES) as dit:
        batches = [dit.index([column(0, [1, 1, 2])]), dit.index([column(0, [2, 3])]), dit.index([column(0, [2, 4])])]
        places = np.array([*batches[0].groups[0].locations, batches[1].groups[0].locations[1], ABSENT], np.uint64)
        assert dit.uses(places).tolist() == [0, 0, 0, 0]  # read ahead only
        assert dit.uses(places).dtype == np.float32
        dit.lookup([column(0, [1, 2])])
        dit.commit(0, batches[0])
        assert dit.uses(places).tolist() == [1, 1, 0, 0]
        dit.lookup([column(0, [1, 2])])
        dit.commit(1)  # delivered without a count
        assert dit.uses(places).tolist() == [1, 1, 0, 0]
        dit.undo_after(None)  # the third one was never delivered
        again = dit.index([column(0, [3, 2])])
        assert again.ticket is not None
        dit.commit(again.ticket, again)
        assert dit.uses(places).tolist() == [1, 2, 1, 0]
        assert dit.uses(np.empty(0, np.uint64)).tolist() == []


def test_a_batch_of_all_groups_counts_once(index_class: type[DIT]) -> None:
    with index_class(TABLES, half_life=1) as dit:
        out = dit.index([column(0, [1]), column(1, [1]), column(2, [1])])
        assert out.ticket is not None
        dit.commit(out.ticket, out)
        for group in out.groups:
            assert dit.uses(group.locations).tolist() == [1] * len(group.locations)
        for expected in (0.5, 0.25):  # each batch that is counted is one step of time
            ticket = dit.index([]).ticket
            assert ticket is not None
            dit.commit(ticket, dit.lookup([]))
            assert dit.uses(out.groups[1].locations).tolist() == [expected]
        ticket = dit.index([]).ticket
        assert ticket is not None
        dit.commit(ticket)  # not counted: no time passes
        assert dit.uses(out.groups[1].locations).tolist() == [0.25]


def test_the_next_row_at_a_place_has_not_been_used(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        out = dit.index([column(0, [1, 2])])
        assert out.ticket is not None
        dit.commit(out.ticket, out)
        dit.remove([column(0, [1])])
        assert dit.uses(out.groups[0].locations).tolist() == [0, 1]
        assert put(dit, column(0, [3]))[0] == [0]
        assert dit.uses(np.array([0, 1], np.uint64)).tolist() == [0, 1]


def test_uses_counted_at_places_without_a_row_are_not_the_next_rows(index_class: type[DIT]) -> None:
    """Places never given, freed, and undone: inside a chunk that is there, so that the locations are accepted."""
    with index_class(TABLES, num_shards=1, half_life=4) as dit:
        put(dit, column(0, [1, 2, 3]))  # places 0, 1, 2
        dit.remove([column(0, [2])])
        first, ahead = dit.index([]).ticket, dit.index([column(0, [4, 5])])
        assert ahead.groups[0].locations.tolist() == [1, 3]  # the freed place, then the next
        assert first is not None
        dit.commit_used(first, [np.array([0, 1, 3, 4, 5], np.uint64)])
        dit.undo_after(None)
        assert put(dit, column(0, range(10, 15)))[0] == [1, 3, 4, 5, 6]
        assert dit.uses(np.arange(7, dtype=np.uint64)).tolist() == [1, 0, 0, 0, 0, 0, 0]
        assert dit.snapshot().column("uses").to_pylist() == [np.float32(2**0.25), 0, 0, 0, 0, 0, 0]


def test_the_batch_that_brings_a_row_counts_in_the_same_commit(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        dit.index([column(0, [1, 2])])
        second = dit.index([column(0, [2, 3])])
        assert second.ticket is not None
        dit.commit(second.ticket, second)  # takes the first along, which is not counted
        assert dit.uses(np.arange(3, dtype=np.uint64)).tolist() == [0, 1, 1]


def test_uses_of_a_later_tickets_rows_are_theirs_when_they_are_committed(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        batches = [dit.index([column(0, ids)]) for ids in ([1], [1, 2], [3], [1, 4])]
        dit.commit(0, batches[1])
        locations = np.arange(4, dtype=np.uint64)
        assert dit.uses(locations).tolist() == [1, 1, 0, 0]
        dit.commit(1, batches[3])
        assert dit.uses(locations).tolist() == [2, 1, 0, 1]
        dit.undo_after(2)  # the row 4 is gone, and so are its uses
        again = dit.index([column(0, [5])])
        assert again.groups[0].locations.tolist() == [3]
        assert again.ticket is not None
        dit.commit(again.ticket, again)
        assert dit.uses(locations).tolist() == [2, 1, 0, 1]
        assert dit.snapshot().column("uses").to_pylist() == [2, 1, 0, 1]


def test_a_commit_that_comes_late_says_what_to_do_and_counts_nothing(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        batches = [dit.index([column(0, [1])]), dit.index([column(0, [1, 2])])]
        dit.commit(1, batches[1])
        for late in (0, 1, 0):
            with pytest.raises(ValueError, match=f"ticket {late} is no longer open") as raised:
                dit.commit(late, batches[late])
            assert str(raised.value).endswith(
                "is no longer open; committed last: 1, and all before it. Its rows are permanent, and this call has "
                "counted nothing: commit each batch once, in the order of the tickets, from one thread where several "
                "index"
            )
        with pytest.raises(ValueError, match=r"ticket 0 is no longer open; committed last: 1, and all before it$"):
            dit.undo_after(0)
        assert dit.uses(np.array([0, 1], np.uint64)).tolist() == [1, 1]
        assert len(dit) == 2


def test_a_commit_that_was_refused_counts_once_when_it_is_made_again(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        out = dit.index([column(0, [1, 2])])
        assert out.ticket is not None
        good = out.groups[0].locations
        for _ in range(2):
            with pytest.raises(ValueError, match="is of no row of this index"):
                dit.commit_used(out.ticket, [good, np.array([1 << 40], np.uint64)])
        dit.commit_used(out.ticket, [good])
        assert dit.uses(good).tolist() == [1, 1]


@pytest.mark.parametrize("looks_between", [False, True])
def test_weights_decay_alike_in_one_step_and_in_many(index_class: type[DIT], looks_between: bool) -> None:
    with index_class(TABLES, num_shards=1, half_life=1) as dit:
        out = dit.index([column(0, [1])])
        nothing = dit.lookup([])
        ticket = out.ticket
        for batch in range(1, 161):
            assert ticket is not None
            dit.commit(ticket, out if batch < 32 else nothing)
            if looks_between:
                dit.uses(out.groups[0].locations)
            ticket = dit.index([]).ticket
        assert dit.snapshot().column("uses").to_pylist() == [2.0**-128]  # 2^32, all but rounding, by 2^32 five times


def test_what_was_counted_before_a_restore_is_forgotten(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as original, index_class(TABLES, num_shards=1) as copy:
        put(original, column(0, [1, 2]))
        ahead, undone = copy.index([]), copy.index([column(0, [3])])
        assert ahead.ticket is not None
        copy.commit(ahead.ticket, undone)
        copy.undo_after(None)
        copy.restore(original.snapshot())
        assert copy.uses(np.array([0, 1], np.uint64)).tolist() == [0, 0]
        assert copy.snapshot().equals(original.snapshot(), check_metadata=True)  # no batch is counted


def test_counts_are_exact_for_a_thousand_batches() -> None:
    with DIT(TABLES, num_shards=1) as dit:
        (places, _) = put(dit, column(0, [1]))
        array = np.array(places, np.uint64)
        for uses in range(1, 1001):
            ticket = dit.index([]).ticket
            assert ticket is not None
            dit.commit_used(ticket, [array])
            assert dit.uses(array).tolist() == [uses]


@pytest.mark.parametrize("half_life", [0, 0.5, -1, 1e10, float("nan"), float("inf")])
def test_half_lives_out_of_range_are_refused(index_class: type[DIT], half_life: float) -> None:
    with pytest.raises(ValueError, match="half_life"):
        index_class(TABLES, half_life=half_life)


@pytest.mark.parametrize("half_life", [True, np.True_, "3", 3j, [3], np.array(3.0)])
def test_half_lives_that_are_no_numbers_are_refused(index_class: type[DIT], half_life: Any) -> None:
    with pytest.raises(TypeError, match=f"half_life must be a number, not {type(half_life).__name__}"):
        index_class(TABLES, half_life=half_life)


@pytest.mark.parametrize(
    ("locations", "error", "message"),
    [
        (np.array([0.0]), TypeError, "must be a uint64 array, not float64"),
        (np.array(["0"]), TypeError, "must be a uint64 array, not <U1"),
        (np.array([False]), TypeError, "must be a uint64 array, not bool"),
        (np.array([0]), TypeError, "must be a uint64 array, not int64"),
        (np.array([0], np.uint32), TypeError, "must be a uint64 array, not uint32"),
        ([0], TypeError, "must be a uint64 array, not list"),
        ("0", TypeError, "must be a uint64 array, not str"),
        (np.array([[0]], np.uint64), ValueError, r"have shape \(1, 1\); they must be one-dimensional"),
    ],
)
def test_locations_that_are_no_uint64_arrays_are_refused(
    index_class: type[DIT], locations: Any, error: type[Exception], message: str
) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        out = dit.index([column(0, [1])])
        with pytest.raises(error, match=f"^locations {message}"):
            dit.uses(locations)
        with pytest.raises(error, match=f"^locations of group 1 {message}"):
            dit.commit_used(0, [out.groups[0].locations, locations])
        assert (len(dit), dit.num_provisional) == (0, 1)
        swapped = out.groups[0].locations.astype(">u8")
        dit.commit_used(0, [swapped])
        assert dit.uses(swapped).tolist() == [1]


def test_what_is_no_indexed_batch_is_not_counted(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        out = dit.index([column(0, [1])])
        used: Any
        for used in (out.groups[0], [out], out.groups[0].locations, 0):
            with pytest.raises(TypeError, match="give the IndexedIds that index"):
                dit.commit(0, used)
        for used in (out.groups[0].locations, iter([]), 0):
            with pytest.raises(TypeError, match="give a list of uint64 arrays, one a group"):
                dit.commit_used(0, used)
        dit.commit(0, out)
        assert dit.uses(out.groups[0].locations).tolist() == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        pack_location(7, 0, rank=2),  # a chunk that nobody has taken
        pack_location(0, 0, rank=3),  # of another owner
        pack_location(0, 0, rank=2, tier=1),
        (1 << 64) - 2,
    ],
)
def test_locations_of_another_index_are_refused_by_position(index_class: type[DIT], wrong: int) -> None:
    with index_class(TABLES, num_shards=1, owner_rank=2) as dit:
        out = dit.index([column(0, [1, 2])])
        good = out.groups[0].locations
        bad = np.array([*good, ABSENT, wrong, wrong], np.uint64)
        with pytest.raises(ValueError, match=f"location {wrong} at position 3 is of no row"):
            dit.commit_used(0, [good, bad])
        with pytest.raises(ValueError, match=f"location {wrong} at position 3 is of no row"):
            dit.uses(bad)
        assert (len(dit), dit.num_provisional) == (0, 2)  # nothing has been committed
        assert dit.uses(good).tolist() == [0, 0]  # nor counted
        with pytest.raises(ValueError, match="unknown ticket 5"):
            dit.commit_used(5, [good])
        assert dit.uses(good).tolist() == [0, 0]
        dit.commit(0, out)
        assert dit.uses(good).tolist() == [1, 1]


def test_uses_of_many_chunks_and_their_memory() -> None:
    with DIT(TABLES, num_shards=2) as dit, PyDIT(TABLES, num_shards=2) as twin:
        assert dit.stats().counts_nbytes == 0
        ids = [IdColumn(0, np.arange(40_000, dtype=np.uint64))]
        for index in (dit, twin):
            out = index.index(ids)
            assert out.ticket is not None
            index.commit(out.ticket, out)
        places = out.groups[0].locations
        assert (dit.uses(places) == 1).all()
        np.testing.assert_array_equal(dit.uses(places), twin.uses(places))
        assert 0 < dit.stats().counts_nbytes < 4 << 20  # four bytes a row, a huge page at least


# --- results' memory


ARRAYS = ("query_ids", "unique_ids", "missing", "locations", "is_new")


def arrays_of(group: IndexedGroup) -> list[np.ndarray]:
    return [getattr(group, name) for name in ARRAYS]


def test_results_stay_as_they_were_while_they_are_held() -> None:
    rng = np.random.default_rng(9)
    held: list[tuple[np.ndarray, np.ndarray]] = []
    dit = DIT(TABLES)
    for step in range(300):  # sizes of one kind, so that blocks are used again; half of the results are dropped
        size = int(rng.integers(200, 2000))
        out = dit.index([IdColumn(t, rng.integers(0, 20_000, size).astype(np.uint64)) for t in (0, 1, 2)])
        mine = [array for group in out.groups for array in arrays_of(group)]
        for i, one in enumerate(mine):
            assert one.flags.writeable
            assert one.ctypes.data % one.itemsize == 0
            assert not any(np.shares_memory(one, other) for other in mine[i + 1 :])
        if step % 2:
            for array, _ in held:
                assert not any(np.shares_memory(array, other) for other in mine)
            # a part of a result keeps all of its memory
            kept = [mine[int(rng.integers(len(mine)))]]
            held += [(array, array.copy()) for array in kept]
            if len(held) > 40:
                held.pop(int(rng.integers(len(held))))
        del out, mine
    for array, copy in held:
        np.testing.assert_array_equal(array, copy)
    dit.close()
    del dit
    gc.collect()
    scratch = [np.full(20_000, 0xFF, np.uint8) for _ in range(200)]  # whoever gets freed memory writes into it
    for array, copy in held:
        np.testing.assert_array_equal(array, copy)
        array[:] = 0  # still ours to write
    assert len(scratch) == 200


def test_memory_of_dropped_results_is_used_again() -> None:
    with DIT(TABLES) as dit:
        columns = [IdColumn(0, np.arange(50_000, dtype=np.uint64))]
        seen = {dit.lookup(columns).groups[0].query_ids.ctypes.data for _ in range(30)}
        assert len(seen) <= 3
        first = dit.lookup(columns)
        held = [dit.lookup(columns) for _ in range(10)]
        assert len({out.groups[0].query_ids.ctypes.data for out in [first, *held]}) == 11
