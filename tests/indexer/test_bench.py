"""The benchmark's own parts: contenders that index rightly, fresh ids, a complete report."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.indexer.bench import Spread, measure
from headrace.indexer.bench_contenders import CommittingIndex, IndexContender, LimitContender
from headrace.indexer.bench_inserts import FreshIds, with_fresh_ids
from headrace.indexer.bench_peers import installed_peers
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexTable

TABLES = (IndexTable(1, 0), IndexTable(2, 1), IndexTable(3, 0))


def make_batches(count: int, rows: int = 40) -> list[list[IdColumn]]:
    rng = np.random.default_rng(3)

    def column(table: int) -> IdColumn:
        return IdColumn(table, rng.integers(0, 30, rows).astype(np.uint32), rng.random(rows) < 0.2)

    return [[column(t) for t in (2, 0, 1, 0)] for _ in range(count)]


def test_a_filled_index_holds_each_resident_once():
    residents = [np.arange(300_000, dtype=np.uint32), np.arange(5, dtype=np.uint32)]
    filled = IndexContender([IndexTable(1, 0), IndexTable(2, 0)], residents, num_threads=2)
    assert len(filled.index) == 300_005
    assert filled.index.num_provisional == 0
    assert filled.filling["insert_rows_per_s"] > 0
    assert filled.filling["longest_call_ms"] > 0
    assert 20 < filled.filling["bytes_per_row"] == filled.filling["bytes_per_row_max"] < 32
    filled.close()
    assert filled.index.closed


def test_a_ticket_that_went_with_a_later_one_is_not_committed_again(monkeypatch):
    with DIT(TABLES) as index:
        early = index.index(make_batches(1)[0])
        committing = CommittingIndex(index)
        committing(make_batches(2)[1])  # the later ticket takes the earlier one along
        monkeypatch.setattr(index, "index", lambda batch: early)
        assert committing(make_batches(1)[0]) is early
        assert index.num_provisional == 0


def test_the_limit_reads_each_unique_id_of_each_batch():
    batches = make_batches(2)
    limit = LimitContender([5, 7], 100)
    run = limit.prepare(batches)
    run()
    run()
    assert len(limit.stream_s) == len(limit.reads_s) == 2
    assert min(limit.stream_s + limit.reads_s) > 0
    with pytest.raises(ValueError, match="argument 2"):
        limit.prepare(batches[:1])()


def test_fresh_ids_are_new_and_come_once():
    with DIT(TABLES) as index:
        first = FreshIds(index).take(1, 50)
        CommittingIndex(index)([IdColumn(1, first[:20])])
        fresh = FreshIds(index)  # counts from 0 again, and so meets the 20
        again = np.concatenate([fresh.take(1, 10), fresh.take(1, 0), fresh.take(1, 40)])
        assert again[:30].tolist() == first[20:].tolist()
        assert len(set(again.tolist())) == 50
        assert again.max() < 2**32


def test_fresh_ids_end_with_the_32_bits():
    with DIT(TABLES) as index:
        fresh = FreshIds(index)
        fresh._next[1] = 2**32 - 20
        assert len(fresh.take(1, 3)) == 3
        with pytest.raises(ValueError, match="table 1 has no 32-bit ids left"):
            fresh.take(1, 3)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_unique_ids_is_replaced(share):
    (batch,) = make_batches(1)
    with DIT(TABLES) as index:
        before = CommittingIndex(index)(batch)
        replaced = with_fresh_ids(batch, share, index, FreshIds(index), np.random.default_rng(0))
        after = index.index(replaced)
    for old, new in zip(before.groups, after.groups, strict=True):
        assert new.num_unique == old.num_unique
        assert new.table_offsets.tolist() == old.table_offsets.tolist()
        assert new.query_ids.tolist() == old.query_ids.tolist()  # what was equal stays equal, across columns, too
        assert new.missing.tolist() == old.missing.tolist()
        counts = np.diff(old.table_offsets)
        expected = [min(round(share * int(n)), int(n) - 1) for n in counts]  # one row a table is the missing value's
        assert new.missing.sum() == len(counts)
        assert [int(part.sum()) for part in np.split(new.is_new, new.table_offsets[1:-1])] == expected
    for old, new in zip(batch, replaced, strict=True):
        assert (new.table, new.values.dtype) == (old.table, old.values.dtype)
        assert new.missing is old.missing


def residents() -> list[np.ndarray]:
    return [np.arange(20, dtype=np.uint32), np.arange(50, 60, dtype=np.uint32), np.empty(0, np.uint32)]


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize("insert_share", [0.0, 1.0])
def test_a_report_is_complete_and_adds_up(one_at_a_time, insert_share):
    batches = make_batches(3)
    report = measure(
        TABLES, residents(), batches, threads=[2, 1], rounds=2, insert_share=insert_share, one_at_a_time=one_at_a_time
    )
    assert report["samples"] == 120
    assert report["ids_per_sample"] == 4
    with DIT(TABLES) as index:
        unique = [sum(g.num_unique for g in index.index(batch).groups) for batch in batches]
    assert report["unique_share"] == sum(unique) / 480
    assert report["order"] == ("one after the other" if one_at_a_time else "interleaved")
    assert set(report["samples_per_s"]) == {"1", "2"}
    assert set(report["baselines_by_threads"]) == {"1", "2"}
    assert report["baselines_by_threads"]["1"]["sharded_map"] == report["baseline_sharded_map"]
    assert report["scaling_1_over_2"] > 0
    assert set(report["peers"]) == set(installed_peers())
    names = {"index_1", "index_2", "limit", *report["peers"]} | {
        f"{name}_{n}" for name in ("sharded_map", "lock_per_id") for n in (1, 2)
    }
    assert set(report["spread"]) == names
    assert all(0 < low <= high for low, high in report["spread"].values())
    parts = report["limit_parts"]
    assert 0 < parts["stream_ms_per_batch"] + parts["reads_ms_per_batch"] < 1000


def test_without_peers_there_are_no_baselines():
    report = measure(TABLES, residents(), make_batches(1), threads=[1], rounds=1, peers=False)
    assert report["baseline_sharded_map"] is None
    assert report["baselines_by_threads"] == report["peers"] == {}
    assert set(report["spread"]) == {"index_1", "limit"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": []}, "at least one number"),
        ({"threads": [1, 1]}, "each once"),
        ({"threads": [0]}, "a number of threads is 0"),
        ({"insert_share": 1.5}, "insert_share is 1.5"),
    ],
)
def test_options_that_make_no_measurement_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        measure(TABLES, residents(), make_batches(1), **{"threads": [1], **options})
    with pytest.raises(ValueError, match="no batch"):
        measure(TABLES, residents(), [], threads=[1])


def test_a_spread_is_of_rates():
    assert Spread.of(12, [1.0, 4.0, 2.0]) == Spread(median=6.0, minimum=3.0, maximum=12.0)
