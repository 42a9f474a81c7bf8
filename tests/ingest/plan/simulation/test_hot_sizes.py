from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.indexer.cost_curve import RowCosts
from headrace.indexer.hotset import choose_hot, choose_hot_reducing_all, touched_by_any
from headrace.ingest.plan.simulation.hot_sizes import Levels, bin_of_counts, presence_counts


def test_presence_and_levels_by_hand() -> None:
    batches = [np.array(rows, np.uint32) for rows in ([0, 3], [3, 1], [3], [0])]
    counts = presence_counts(batches, 5)
    assert counts.tolist() == [2, 1, 0, 3, 0]
    levels = Levels.of(counts, len(batches))
    assert levels.at_least.tolist() == [3, 3, 2, 1, 0, 0]
    assert levels.presence.tolist() == [0, 0.25, 0.5, 0.75, 1]
    examined = levels.examined(10)
    assert examined.tolist() == [5, 3, 2, 1]  # level 4 has no row, as level 5
    assert levels.at_least[examined].tolist() == [0, 1, 2, 3]
    assert bin_of_counts(examined, 4).tolist() == [3, 2, 1, 0, 0]


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 6), st.lists(st.integers(-1, 12), max_size=3))
@settings(max_examples=150, deadline=None)
def test_a_row_is_hot_in_the_sets_behind_its_bin(counts, points, wanted) -> None:
    levels = Levels.of(np.array(counts, np.int32), 9)
    examined = levels.examined(points, wanted)
    assert examined[0] > max(counts, default=0)  # set 0 is empty
    assert (np.diff(levels.at_least[examined]) > 0).all()
    assert levels.at_least[examined[-1]] == sum(c > 0 for c in counts)
    bins = bin_of_counts(examined, 9)
    for count in counts:
        if count:
            assert [count >= level for level in examined] == [bins[count] < j for j in range(len(examined))]
    for level in wanted:
        if 1 <= level <= 10:
            assert levels.at_least[level] in levels.at_least[examined]


@pytest.mark.parametrize("costs", [RowCosts(1, 2, 1.5), RowCosts(0, 2, 1), RowCosts(4, 4, 1), RowCosts(1, 1, 9)])
@pytest.mark.parametrize("group", [1, 4])
def test_the_level_is_that_of_the_rule(costs, group) -> None:
    levels = Levels.of(np.random.default_rng(0).integers(0, 101, 500).astype(np.int32), 100)
    q = touched_by_any(levels.presence, group)
    level = levels.level_by_rule(costs, world_size=8, group=group)
    hot = choose_hot(q, world_size=8, c_early=costs.c_early, c_late=costs.c_late, c_ar=costs.c_ar)
    assert np.flatnonzero(hot).tolist() == list(range(level, 101))


def test_reducing_all_compares_a_row_with_its_price() -> None:
    levels = Levels.of(np.arange(101, dtype=np.int32), 100)
    # nothing is hidden: the published rule itself
    level = levels.level_by_rule(RowCosts(4, 4, 1), world_size=8, reduce_all=True)
    published = choose_hot_reducing_all(levels.presence, c_a2a=4, c_ar=1)
    assert level == int(np.argmax(published)) == 26
    # all early rows are free: q P c_late > c_ar
    level = levels.level_by_rule(RowCosts(0, 4, 1), world_size=1, reduce_all=True)
    assert level == 51  # q^2 > 1/4
    assert levels.level_by_rule(RowCosts(0, 4, 9), world_size=8, reduce_all=True) == 101
    assert levels.level_by_rule(RowCosts(0, 0, 0), world_size=8, reduce_all=True) == 101
