from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.indexer._dit_py import deduplicate_py
from headrace.indexer.columns import check_columns
from headrace.indexer.dedup import Deduplicator, deduplicate
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import ABSENT, IdColumn, IndexedGroup, IndexedIds, IndexTable
from tests.support.index_batches import assert_same_ids, column

TABLES = (IndexTable(1, 0), IndexTable(2, 1), IndexTable(3, 0))


def test_unique_rows_have_no_location() -> None:
    out = deduplicate([column(0, [7, 8, 7], [False, False, True]), column(1, [7])], TABLES)
    assert out.ticket is None
    assert out.groups[0].query_ids.tolist() == [0, 1, 2]
    assert out.groups[0].missing.tolist() == [False, False, True]
    assert out.groups[0].locations.tolist() == [ABSENT] * 3
    assert not out.groups[0].is_new.any()


def test_deduplication_is_that_of_the_index() -> None:
    rng = np.random.default_rng(1)
    columns = [IdColumn(int(rng.integers(3)), rng.integers(0, 500, 800).astype(np.uint32)) for _ in range(5)]
    with DIT(TABLES) as dit:
        assert_same_ids(deduplicate(columns, TABLES), dit.lookup(columns))


@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_scratch_of_one_batch_does_not_reach_the_next(num_threads: int) -> None:
    rng = np.random.default_rng(4)
    kept = Deduplicator(TABLES, num_threads=num_threads)
    for size in (5000, 3, 0, 40, 9000, 1):
        columns = [
            IdColumn(int(rng.integers(3)), rng.integers(0, 3000, size).astype(np.uint64), rng.random(size) < 0.2)
            for _ in range(4)
        ]
        assert_same_ids(kept.deduplicate(columns), deduplicate(columns, TABLES))
    kept.close()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 9), st.booleans()))),
        max_size=6,
    )
)
def test_deduplication_equals_twin_and_rebuilds_the_columns(raw: list) -> None:
    columns = [column(table, [i for i, _ in rows], [m for _, m in rows]) for table, rows in raw]
    out = deduplicate(columns, TABLES)
    twin = deduplicate_py(check_columns(columns, TABLES), TABLES)
    assert_same_ids(out, IndexedIds(tuple(IndexedGroup(*arrays) for arrays in twin), None))
    for g, group in enumerate(out.groups):
        mine = [c for c in columns if TABLES[c.table].group == g]
        flat = [
            (c.table, bool(m), 0 if m else i)
            for c in mine
            for i, m in zip(c.values.tolist(), c.missing.tolist(), strict=True)  # type: ignore[union-attr]
        ]
        table_of = np.repeat(np.array(group.tables, np.int64), np.diff(group.table_offsets))
        rows = list(zip(table_of.tolist(), group.missing.tolist(), group.unique_ids.tolist(), strict=True))
        assert [rows[q] for q in group.query_ids] == flat
        assert len(set(rows)) == len(rows)


def test_id_0_is_never_taken_for_the_missing_value_when_the_scratch_grows() -> None:
    # Both have id 0 in the list of unique ids. Were the missing row given a slot in the scratch table, id 0 would meet
    # it where their runs touch: in some of 1000 tables.
    tables = [IndexTable(uid, 0) for uid in range(1000)]
    ids = [9, *range(1, 40), 0]
    columns = [column(t, ids, [True, *[False] * 40]) for t in range(1000)]
    group = deduplicate(columns, tables).groups[0]
    assert group.query_ids.tolist() == list(range(41 * 1000))
