"""Behaviours of the index, on the native kernel and on its twin."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from headrace.indexer.dedup import Deduplicator
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import ABSENT, CHUNK_ROWS, IdColumn, IndexTable, pack_location, unpack_location
from tests.support.index_batches import assert_same_ids, column

TABLES = (IndexTable(10, 0), IndexTable(20, 1), IndexTable(30, 0))
ODD_IDS = [0, 1, 2, 3, 1 << 31, 1 << 32, 1 << 62, 1 << 63, (1 << 63) - 1, (1 << 64) - 3, -2, -1, 0xFFFFFFFF]


def locations(dit: DIT, *columns: IdColumn) -> list[int]:
    return [int(x) for g in dit.lookup(columns).groups for x in g.locations]


def test_every_64_bit_id_is_legal_and_a_row_of_its_own(index_class: type[DIT]) -> None:  # P17, P32, L115
    with index_class(TABLES) as dit:
        group = dit.index([column(0, ODD_IDS)]).groups[0]
        assert group.unique_ids.tolist() == [i & (1 << 64) - 1 for i in ODD_IDS]
        assert group.query_ids.tolist() == list(range(len(ODD_IDS)))
        assert len(set(group.locations.tolist())) == len(ODD_IDS)
        assert group.is_new.all()
        again = dit.index([column(0, ODD_IDS[::-1])]).groups[0]
        assert again.locations.tolist() == group.locations.tolist()[::-1]
        assert not again.is_new.any()


def test_ids_above_float_precision_stay_apart(index_class: type[DIT]) -> None:  # P31
    ids = [16777215, 16777216, 16777217, (1 << 53), (1 << 53) + 1]
    with index_class(TABLES) as dit:
        assert len(set(dit.index([column(0, ids)]).groups[0].locations.tolist())) == len(ids)


def test_missing_is_its_own_key_and_its_value_is_ignored(index_class: type[DIT]) -> None:  # P33
    with index_class(TABLES) as dit:
        group = dit.index([column(0, [0, 7, 9, 0], [False, True, True, False])]).groups[0]
        assert group.query_ids.tolist() == [0, 1, 1, 0]
        assert group.unique_ids.tolist() == [0, 0]
        assert group.missing.tolist() == [False, True]
        assert group.locations[0] != group.locations[1]
        assert dit.lookup([column(0, [7, 9])]).groups[0].locations.tolist() == [ABSENT, ABSENT]
        # many ids after it: the missing row keeps its position when the scratch table grows
        ids = [5, *range(500), 5]
        wide = dit.index([column(0, ids, [True, *[False] * 500, True])]).groups[0]
        assert wide.query_ids.tolist() == [0, *range(1, 501), 0]
        assert wide.locations[0] == group.locations[1]


def test_the_same_id_in_two_tables_is_two_rows(index_class: type[DIT]) -> None:
    with index_class(TABLES) as dit:
        groups = dit.index([column(0, [5]), column(2, [5]), column(1, [5])]).groups
        assert len({int(x) for g in groups for x in g.locations}) == 3


def test_columns_of_a_shared_table_are_deduplicated_together(index_class: type[DIT]) -> None:  # P41
    with index_class(TABLES) as dit:
        out = dit.index([column(2, [8, 8, 9]), column(1, [1]), column(0, [8]), column(2, [9, 7], dtype=np.uint32)])
        first, second = out.groups
        assert first.tables == (2, 0)
        assert first.table_offsets.tolist() == [0, 3, 4]
        assert first.unique_ids.tolist() == [8, 9, 7, 8]
        assert first.query_ids.tolist() == [0, 0, 1, 3, 1, 2]  # the columns of the group, in the given order
        assert second.tables == (1,)
        assert second.query_ids.tolist() == [0]


def test_empty_columns_empty_batches_and_no_tables(index_class: type[DIT]) -> None:
    with index_class(TABLES) as dit:
        out = dit.index([])
        assert [g.tables for g in out.groups] == [(), ()]
        assert [g.table_offsets.tolist() for g in out.groups] == [[0], [0]]
        out = dit.index([column(2, []), column(0, [], []), column(2, [], dtype=np.uint32)])
        assert out.groups[0].tables == (2, 0)
        assert out.groups[0].table_offsets.tolist() == [0, 0, 0]
        for group in out.groups:
            for array, dtype in (
                (group.query_ids, np.uint32),
                (group.unique_ids, np.uint64),
                (group.missing, np.bool_),
                (group.locations, np.uint64),
                (group.is_new, np.bool_),
            ):
                assert (array.dtype, array.shape) == (dtype, (0,))
        dit.commit(1)
        assert len(dit) == 0
    with index_class([]) as dit:
        assert dit.index([]).groups == ()
        assert dit.snapshot().num_rows == 0


def test_places_are_handed_out_in_order_chunk_after_chunk(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1, owner_rank=513) as dit:
        ids = np.arange(CHUNK_ROWS - 1, dtype=np.uint64)
        dit.index([IdColumn(0, ids), IdColumn(1, ids[:2])])
        out = dit.index([column(1, [1, 2]), column(0, [CHUNK_ROWS - 1, CHUNK_ROWS, 0])])
        # group 0 took chunk 0, group 1 chunk 1, and group 0 goes on in chunk 2 when chunk 0 is full
        assert [unpack_location(int(x)) for x in out.groups[0].locations] == [
            (0, 513, 0, CHUNK_ROWS - 1),
            (0, 513, 2, 0),
            (0, 513, 0, 0),
        ]
        assert out.groups[1].locations.tolist() == [pack_location(1, 1, rank=513), pack_location(1, 2, rank=513)]
        assert [dit.chunk_group(c) for c in (0, 1, 2)] == [0, 1, 0]
        with pytest.raises(ValueError, match="chunk 3"):
            dit.chunk_group(3)


def test_shards_take_interleaved_chunk_numbers(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=4) as dit:
        group = dit.index([IdColumn(0, np.arange(40, dtype=np.uint64))]).groups[0]
        chunks = [unpack_location(int(x))[2] for x in group.locations]
        assert set(chunks) == {0, 1, 2, 3}
        for chunk in range(4):
            offsets = [unpack_location(int(x))[3] for x in group.locations if unpack_location(int(x))[2] == chunk]
            assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("count", [112, 113, 128, 3000])
def test_a_batch_may_bring_more_keys_than_there_is_room(index_class: type[DIT], count: int) -> None:  # P34, P39
    # a shard begins with 128 entries and holds 112 rows before it must grow in the middle of a batch
    with index_class(TABLES, num_shards=1) as dit:
        group = dit.index([IdColumn(0, np.arange(count, dtype=np.uint64))]).groups[0]
        assert group.locations.tolist() == list(range(count))
        dit.commit(0)
        assert locations(dit, IdColumn(0, np.arange(count, dtype=np.uint64))) == list(range(count))


@pytest.mark.parametrize("stride", [1, 8, 1 << 20, 1 << 44, 1 << 58])  # L115, P46
def test_growth_through_many_sizes_loses_nothing(stride: int) -> None:
    with DIT(TABLES) as dit:
        known: dict[int, int] = {}
        for start in range(0, 60 if stride == 1 << 58 else 60_000, 1500):
            ids = np.arange(start, start + 1500, dtype=np.uint64) * np.uint64(stride)
            group = dit.index([IdColumn(0, ids)]).groups[0]
            known.update(zip(group.unique_ids.tolist(), group.locations.tolist(), strict=True))
        ids = np.array(list(known), np.uint64)
        assert len(set(known.values())) == len(known) == dit.num_provisional
        dit.commit(0 if stride == 1 << 58 else 39)
        assert dit.lookup([IdColumn(0, ids)]).groups[0].locations.tolist() == list(known.values())
        if stride != 1 << 58:
            stats = dit.stats()
            assert stats.growths > 400
            # of new keys, up to the first cache line with room, at loads from 0.62 to 0.84; Knuth's formula gives 2.5
            assert 2 < stats.mean_probe_length < 3
            assert stats.shard_imbalance < 1.3
            for start in range(0, 60_000, 1500):
                dit.index([IdColumn(0, np.arange(start, start + 1500, dtype=np.uint64) * np.uint64(stride))])
            # of known ones: 1.1 to 1.5 at these loads
            assert 1.05 < 2 * dit.stats().mean_probe_length - stats.mean_probe_length < 1.4


def test_outputs_belong_to_the_receiver(index_class: type[DIT]) -> None:  # L120
    with index_class(TABLES) as dit:
        ids = np.arange(1000, dtype=np.uint64)
        group = dit.index([IdColumn(0, ids)]).groups[0]
        before = {name: getattr(group, name).copy() for name in ("query_ids", "unique_ids", "locations", "is_new")}
        for start in range(1000, 20000, 1000):
            later = dit.index([IdColumn(0, ids + np.uint64(start))]).groups[0]
        for name, copy in before.items():
            array = getattr(group, name)
            np.testing.assert_array_equal(array, copy)
            assert array.flags.writeable
            assert not np.shares_memory(array, getattr(later, name))
        group.locations[:] = 0
        dit.commit(0)
        assert dit.lookup([IdColumn(0, ids)]).groups[0].locations.tolist() == before["locations"].tolist()


def test_work_after_deduplication_does_not_grow_with_duplicates() -> None:  # L118
    with DIT(TABLES) as dit:
        dit.index([IdColumn(0, np.zeros(100_000, np.uint64)), IdColumn(1, np.ones(100_000, np.uint32))])
        assert dit.stats().mean_probe_length == 1.0
        assert dit.num_provisional == 2
        assert dit.stats().scratch_nbytes < 64_000


def test_lookup_inserts_and_counts_nothing(index_class: type[DIT]) -> None:  # P30
    with index_class(TABLES) as dit:
        known = dit.index([column(0, [1, 2], [False, True])])
        dit.commit(known.ticket)
        before = dit.stats()
        found = dit.lookup([column(0, [3, 1, 3, 0], [False, False, False, True]), column(1, [1])])
        assert found.ticket is None
        assert found.groups[0].query_ids.tolist() == [0, 1, 0, 2]
        assert found.groups[0].locations.tolist() == [ABSENT, *known.groups[0].locations.tolist()]
        assert not found.groups[0].is_new.any()
        assert found.groups[1].locations.tolist() == [ABSENT]
        after = dit.stats()
        assert (before.rows, before.provisional, before.mean_probe_length) == (
            after.rows,
            after.provisional,
            after.mean_probe_length,
        )
        assert dit.index([column(1, [1])]).groups[1].is_new.tolist() == [True]


# --- tickets


def test_lookup_finds_committed_rows_only(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        first = dit.index([column(0, [1, 2])])
        dit.commit(first.ticket)
        dit.index([column(0, [3, 2]), column(1, [3])])
        found = dit.lookup([column(0, [1, 3, 2]), column(1, [3])])
        assert found.groups[0].locations.tolist() == [0, ABSENT, 1]
        assert found.groups[1].locations.tolist() == [ABSENT]
        dit.undo_after(first.ticket)
        again = dit.index([column(0, [4])])
        dit.commit(again.ticket)
        assert locations(dit, column(0, [3, 4])) == [ABSENT, 2]  # 4 has the place that 3 had
        assert again.groups[0].locations.tolist() == [2]


def test_rows_are_provisional_until_their_batch_is_committed(index_class: type[DIT]) -> None:
    with index_class(TABLES) as dit:
        first = dit.index([column(0, [1, 2])])
        second = dit.index([column(0, [2, 3])])  # uses 2, which the first batch brought
        third = dit.index([column(0, [3])])
        assert (first.ticket, second.ticket, third.ticket) == (0, 1, 2)
        assert (len(dit), dit.num_provisional) == (0, 3)
        dit.commit(0)
        assert (len(dit), dit.num_provisional) == (2, 1)
        dit.commit(2)  # and the earlier ticket 1
        assert (len(dit), dit.num_provisional) == (3, 0)
        dit.undo_after(None)
        assert len(dit) == 3


def test_undone_batches_leave_no_trace(index_class: type[DIT]) -> None:
    rng = np.random.default_rng(2)
    batches = [[IdColumn(t, rng.integers(0, 900, 300).astype(np.uint64)) for t in (0, 1, 2)] for _ in range(8)]
    with index_class(TABLES, num_shards=4) as dit, index_class(TABLES, num_shards=4) as plain:
        for batch in batches[:3]:
            plain.index(batch)
            dit.index(batch)
        dit.commit(1)
        for batch in batches[3:6]:
            dit.index(batch)
        dit.undo_after(2)
        assert dit.num_provisional + len(dit) == plain.num_provisional
        with pytest.raises(ValueError, match="chunk"):
            dit.chunk_group(1000)
        for batch in batches[6:]:
            ours, theirs = dit.index(batch), plain.index(batch)
            for a, b in zip(ours.groups, theirs.groups, strict=True):
                np.testing.assert_array_equal(a.locations, b.locations)
                np.testing.assert_array_equal(a.is_new, b.is_new)
        dit.undo_after(None)
        assert dit.num_provisional == 0
        dit.undo_after(1)  # the ticket committed last: nothing is later


def test_undo_gives_chunk_numbers_back(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as dit:
        dit.index([column(0, [1])])
        dit.index([column(1, [1]), IdColumn(0, np.arange(CHUNK_ROWS + 5, dtype=np.uint64))])
        assert [dit.chunk_group(c) for c in (0, 1, 2)] == [0, 0, 1]  # places go by group, then table
        dit.undo_after(0)
        with pytest.raises(ValueError, match="chunk 1"):
            dit.chunk_group(1)
        out = dit.index([column(1, [5]), column(0, [9])])
        assert out.groups[1].locations.tolist() == [pack_location(1, 0)]
        assert out.groups[0].locations.tolist() == [pack_location(0, 1)]


def test_undoing_everything_again_and_again_leaves_no_tombstones() -> None:  # L115
    with DIT(TABLES, num_shards=1) as dit:
        dit.commit(dit.index([column(0, [1])]).ticket)
        for round_ in range(500):
            ids = np.arange(round_ * 40, round_ * 40 + 40, dtype=np.uint64) + np.uint64(10)
            dit.index([IdColumn(0, ids)])
            dit.undo_after(None)
            assert set(dit.lookup([IdColumn(0, ids)]).groups[0].locations.tolist()) == {int(ABSENT)}
        stats = dit.stats()
        assert (stats.capacity, stats.growths, stats.rows) == (128, 0, 1)
        assert stats.max_probe_length < 9  # 41 rows in 32 lines, drawn 500 times


def test_unknown_tickets_are_refused(index_class: type[DIT]) -> None:
    with index_class(TABLES) as dit:
        for method in (dit.commit, dit.undo_after):
            with pytest.raises(ValueError, match="unknown ticket 0: this index never gave it out"):
                method(0)
            with pytest.raises(ValueError, match="ticket is -1"):
                method(-1)
            with pytest.raises(TypeError, match="ticket"):
                method(True)
        for start in range(4):
            dit.index([column(0, [start])])
        dit.undo_after(2)
        dit.commit(1)
        for method in (dit.commit, dit.undo_after):
            with pytest.raises(ValueError, match="unknown ticket 3: it was undone"):
                method(3)
            with pytest.raises(ValueError, match="ticket 0 is no longer open; committed last: 1"):
                method(0)
        with pytest.raises(ValueError, match="ticket 1 is no longer open"):
            dit.commit(1)
        assert (len(dit), dit.num_provisional) == (2, 1)
        assert dit.index([]).ticket == 4  # not given out again


def test_a_refused_batch_changes_nothing(index_class: type[DIT]) -> None:
    with index_class(TABLES) as dit:
        with pytest.raises(TypeError):
            dit.index([column(0, [1]), IdColumn(1, np.zeros(2, np.float64))])  # type: ignore[arg-type]
        assert dit.num_provisional == 0
        assert dit.index([column(0, [1])]).ticket == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_shards": 0}, ValueError),
        ({"num_shards": 48}, ValueError),
        ({"num_shards": 128}, ValueError),
        ({"num_threads": 0}, ValueError),
        ({"num_threads": 10**6}, ValueError),
        ({"owner_rank": 1 << 16}, ValueError),
        ({"num_shards": 8.0}, TypeError),
    ],
)
def test_options_out_of_range_are_refused(index_class: type[DIT], options: dict, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        index_class(TABLES, **options)


def test_places_do_not_depend_on_the_number_of_threads() -> None:  # P74
    rng = np.random.default_rng(3)
    with DIT(TABLES) as one, DIT(TABLES, num_threads=2) as two, DIT(TABLES, num_threads=7) as seven:
        for _ in range(12):
            batch = [
                IdColumn(int(rng.integers(3)), rng.integers(0, 30_000, 4000).astype(np.uint64), rng.random(4000) < 0.01)
                for _ in range(6)
            ]
            expected = one.index(batch)
            for other in (two, seven):
                assert_same_ids(other.index(batch), expected)
        assert one.snapshot().equals(two.snapshot(), check_metadata=True)
        one.commit(11), seven.commit(11)
        assert one.snapshot().equals(seven.snapshot(), check_metadata=True)


def test_memory_stays_under_24_bytes_a_row_on_average_and_32_at_worst() -> None:
    per_row, loads = [], []
    with DIT(TABLES) as dit:
        step = 50_000
        for start in range(0, 2_300_000, step):
            ids = np.arange(start, start + step, dtype=np.uint64)
            dit.commit(dit.index([IdColumn(0, ids)]).ticket)
            if len(dit) >= 1_000_000:
                per_row.append(dit.nbytes / len(dit))
                loads.append(dit.stats().load)
        assert len(dit) == 2_300_000
        assert dit.stats().counts_nbytes == 0  # nothing was counted
    assert loads == pytest.approx([0.726] * len(loads), abs=0.03)  # 0.84 / 1.35 to 0.84, by the logarithm
    assert np.mean(per_row) <= 24
    assert max(per_row) <= 32
    assert max(per_row) / min(per_row) < 1.1  # shards grow at different sizes, so the sum has no steps


def test_shards_do_not_all_grow_in_one_call() -> None:
    with DIT(TABLES) as dit:
        grown = []
        for start in range(0, 1_000_000, 20_000):
            before = dit.stats().growths
            dit.index([IdColumn(0, np.arange(start, start + 20_000, dtype=np.uint64))])
            grown.append(dit.stats().growths - before)
        assert max(grown[25:]) < 24  # of 64
        assert sum(grown[25:]) > 64


def test_an_index_shows_what_it_is(index_class: type[DIT]) -> None:
    dit = index_class(TABLES, num_shards=2)
    dit.commit(dit.index([column(0, range(1234))]).ticket)
    dit.index([column(0, range(2000))])  # provisional
    assert repr(dit) == f"DIT({len(TABLES)} tables, 1,234 rows, num_shards=2, num_threads=1)"
    dit.close()
    assert repr(dit) == f"DIT({len(TABLES)} tables, closed, num_shards=2, num_threads=1)"


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_index_is_neither_pickled_nor_copied(index_class: type[DIT], duplicate: Any) -> None:
    with index_class(TABLES) as dit:
        with pytest.raises(TypeError, match=r"cannot be pickled or copied.*: write_snapshot\(\) here"):
            duplicate(dit)
        with pytest.raises(TypeError, match=r"a deduplicator cannot be pickled .*: make one in each process"):
            duplicate(Deduplicator(TABLES))
        assert dit.index([]).ticket == 0
