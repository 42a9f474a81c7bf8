"""Packed columns: what an index makes of them is what it makes of the same columns one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.indexer._dit_py import PyDIT
from headrace.indexer.dedup import deduplicate
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexTable
from headrace.indexer.packed_columns import PackedColumns, checked

TABLES = (IndexTable(10, 0), IndexTable(20, 1), IndexTable(30, 0))
ORDER = [2, 0, 1]


def packed(senders, missing_at=None, order=ORDER):
    """`senders`: a list of ids a table, for each sender; `missing_at`: the same shape, -1 where nothing is missing."""
    counts = np.array([[len(column) for column in one] for one in senders], np.int64).reshape(-1, len(order))
    ids = [np.array([i for column in one for i in column], np.uint64) for one in senders]
    lost = np.full(counts.shape, -1, np.int64) if missing_at is None else np.array(missing_at, np.int64)
    return PackedColumns(np.array(order, np.int64), ids, counts, lost)


def of_counts(counts, *, ids):
    """One sender's ids with counts of any shape."""
    return PackedColumns(np.array(ORDER), [np.zeros(ids, np.uint64)], np.array(counts), np.full((1, 3), -1))


def one_by_one(columns):
    """The same as IdColumn, but for those without ids behind the first sender."""
    out = []
    for sender, (ids, counts, lost) in enumerate(zip(columns.ids, columns.counts, columns.missing_at, strict=True)):
        parts = np.split(ids, np.cumsum(counts)[:-1])
        for table, part, at in zip(columns.tables.tolist(), parts, lost.tolist(), strict=True):
            if len(part) or not sender:
                out.append(IdColumn(table, part, np.arange(len(part)) == at))
    return out


def said(found):
    return [
        (g.query_ids.tolist(), g.unique_ids.tolist(), g.missing.tolist(), g.locations.tolist(), g.is_new.tolist(),
         g.tables, g.table_offsets.tolist())
        for g in found.groups
    ]  # fmt: skip


COLUMN = st.lists(st.integers(0, 9), max_size=5)


@pytest.mark.parametrize("index_class", [DIT, PyDIT], ids=["native", "twin"])
@given(senders=st.lists(st.tuples(COLUMN, COLUMN, COLUMN), min_size=1, max_size=4), data=st.data())
@settings(deadline=None, max_examples=40)
def test_they_are_the_columns_one_by_one(index_class, senders, data):
    lost = [[data.draw(st.integers(-1, max(0, len(column)) - 1)) for column in one] for one in senders]
    columns = packed(senders, lost)
    first, second = index_class(TABLES), index_class(TABLES)
    for _ in range(2):  # new rows, then known ones
        found = first.index(columns)
        assert said(found) == said(second.index(one_by_one(columns)))
    assert said(first.lookup(columns)) == said(second.lookup(one_by_one(columns)))
    assert said(deduplicate(columns, TABLES)) == said(deduplicate(one_by_one(columns), TABLES))
    first.commit(found.ticket)
    second.commit(found.ticket)
    assert said(first.remove(columns)) == said(second.remove(one_by_one(columns)))


def test_tables_without_ids_occur_in_their_order():
    found = DIT(TABLES).index(packed([([], [], []), ([5], [7], [])]))
    assert found.groups[0].tables == (2, 0)
    assert found.groups[0].unique_ids.tolist() == [5, 7]
    assert found.groups[1].tables == (1,)


def test_nobody_asks_for_anything():
    found = DIT(TABLES).index(PackedColumns(np.array(ORDER), [], np.empty((0, 3)), np.empty((0, 3))))
    assert [group.num_unique for group in found.groups] == [0, 0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (packed([([1], [2], [])], [[1, -1, -1]]), "missing value"),
        (packed([([1], [2], [])], [[0, -1, 3]]), "missing value"),
        (packed([([1], [2], [])], order=[0, 1, 3]), r"tables \[0, 1, 3\] of 3"),
        (packed([([1], [2], [])], order=[-1, 1, 2]), r"tables \[-1, 1, 2\] of 3"),
        (of_counts([[1, 0, 0]], ids=2), "2.* ids"),
        (of_counts([[2, -1, 0]], ids=1), "fewer"),
        (of_counts([[1, 0]], ids=1), "columns"),
        (of_counts([[1, 0, 0], [0, 0, 0]], ids=1), "columns"),
    ],
)
def test_what_does_not_fit_together_is_refused(columns, message):
    index = DIT(TABLES)
    with pytest.raises(ValueError, match=message):
        index.index(columns)
    assert index.num_provisional == 0


def test_more_ids_than_a_group_may_have_are_refused(monkeypatch):
    monkeypatch.setattr("headrace.indexer.packed_columns.NNZ_LIMIT", 3)
    checked(packed([([1], [2], [1, 2, 3])]), TABLES)
    with pytest.raises(ValueError, match=r"groups of \[4, 0\] ids"):
        checked(packed([([1, 2], [3], []), ([1], [], [])]), TABLES)
