"""The contenders of the benchmark are indexes themselves: one key, one row, by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.indexer import _bench
from headrace.indexer.bench_peers import CykhashIndex, NumpyUniqueDict
from headrace.indexer.indexed import IndexTable


@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_locked_maps_are_an_index(num_threads):
    rng = np.random.default_rng(0)
    maps, locations = _bench.LockedMaps(64), {}
    for turn in range(6):
        keys = rng.integers(0, 2**64, 50, np.uint64).repeat(3)
        keys[:21] = np.arange(21)  # met again in every turn
        found = (maps.index_batch if turn % 2 else maps.index_each)(keys, num_threads)
        for key, location in zip(keys.tolist(), found.tolist(), strict=True):
            assert locations.setdefault(key, location) == location
    assert len(locations) == 21 + 6 * 43
    by_shard = {(key >> 42 & 63, location) for key, location in locations.items()}
    assert len(by_shard) == len(locations)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_more_threads_than_keys_index_them_all(size, num_threads):
    maps, keys = _bench.LockedMaps(64), np.arange(size, dtype=np.uint64)
    assert maps.index_batch(keys, num_threads).tolist() == list(range(size))
    assert maps.index_each(keys, num_threads).tolist() == list(range(size))


def test_the_numpy_peer_gives_each_id_a_row():
    peer = NumpyUniqueDict([IndexTable(1, 0), IndexTable(2, 0)], [])
    for values in ([5, 3, 5], [9, 3]):
        peer.index_column(1, np.array(values, np.uint32))
    assert peer._rows == [{}, {3: 0, 5: 1, 9: 2}]


def test_the_cykhash_peer_is_an_index():
    pytest.importorskip("cykhash", reason="cykhash is not installed")
    residents = [np.array([7, 8], np.uint32), np.array([2**63], np.uint64)]
    peer = CykhashIndex([IndexTable(1, 0), IndexTable(2, 0)], residents)
    query_ids, rows = peer.rows_of(0, np.array([9, 8, 9, 11, 7], np.int64))
    assert query_ids.tolist() == [0, 1, 0, 2, 3]
    assert rows.tolist() == [2, 1, 3, 0]
    assert peer.rows_of(1, np.array([-(2**63), 0], np.int64))[1].tolist() == [0, 1]
    assert peer.rows_of(0, np.array([11, 12], np.int64))[1].tolist() == [3, 4]
    assert len(peer.rows_of(0, np.empty(0, np.int64))[0]) == 0
