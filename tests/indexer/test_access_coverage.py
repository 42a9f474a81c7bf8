from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.indexer.access_coverage import CoverageMeter, most_accessed
from headrace.indexer.hotset import Coverage, PresenceCounter, coverage


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_the_most_accessed_rows_by_hand() -> None:
    locations, accesses = u64(3, 5, 8, 9), np.array([4, 7, 4, 1])
    assert most_accessed(locations, accesses, 2).tolist() == [3, 5]
    assert most_accessed(locations, accesses, 3).tolist() == [3, 5, 8]
    assert most_accessed(locations, accesses, 0).tolist() == []
    assert most_accessed(locations, accesses, 9).tolist() == [3, 5, 8, 9]


def test_accesses_and_unique_rows_differ() -> None:
    meter = CoverageMeter([u64(3, 5), u64(), u64(1, 3, 5, 7)])
    assert meter.coverage() == [Coverage(0.0, 0.0)] * 3
    meter.add(u64(5, 7), np.array([0, 0, 0, 1], np.uint32))  # 5 three times, 7 once
    meter.add(u64(9, 3, 11), np.array([0, 1, 1, 2], np.uint32))
    assert meter.coverage() == [Coverage(5 / 8, 2 / 5), Coverage(0.0, 0.0), Coverage(6 / 8, 3 / 5)]


@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=20), max_size=6), st.integers(0, 6))
def test_what_the_chosen_rows_cover_of_their_own_batches(batches, rows) -> None:
    """Equal to the coverage that the counter of the batches implies."""
    counter = PresenceCounter()
    indexed = [np.unique(np.array(batch, np.uint64), return_inverse=True) for batch in batches]
    for locations, query_ids in indexed:
        counter.add(locations, query_ids.astype(np.uint32))
    hot = most_accessed(counter.locations(), counter.accesses(), rows)
    meter = CoverageMeter([hot])
    for locations, query_ids in indexed:
        meter.add(locations, query_ids.astype(np.uint32))
    mask = np.isin(counter.locations(), hot)
    expected = coverage(mask, accesses=counter.accesses(), batches=counter.batches())
    assert meter.coverage() == [expected]
