from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.indexer import _dit, hashing
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexTable

IDS = {
    "sequential": lambda n: np.arange(n, dtype=np.uint64),
    "multiples_of_8": lambda n: np.arange(n, dtype=np.uint64) * np.uint64(8),  # P46
    "multiples_of_12": lambda n: np.arange(n, dtype=np.uint64) * np.uint64(12),
    "stride_2^20": lambda n: np.arange(n, dtype=np.uint64) << np.uint64(20),  # L115
    "stride_2^44": lambda n: np.arange(n, dtype=np.uint64) << np.uint64(44),
    "high_half": lambda n: np.arange(n, dtype=np.uint64) << np.uint64(64 - n.bit_length() + 1),
    "timestamps_ms": lambda n: np.uint64(1_700_000_000_000) + np.arange(n, dtype=np.uint64) * np.uint64(1000),
    "negative": lambda n: np.uint64(0) - np.arange(n, dtype=np.uint64),
}


MULTIPLIERS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)


def test_multipliers_are_private_odd_and_checked() -> None:
    drawn = {hashing.private_multiplier() for _ in range(20)}
    assert len(drawn) == 20
    assert all(multiplier % 2 == 1 for multiplier in drawn)
    assert max(drawn) >= 1 << 60
    assert hashing.private_multiplier(MULTIPLIERS[1]) == MULTIPLIERS[1]
    for wrong in (2, 0, -1, 1 << 64, (1 << 64) + 1):
        with pytest.raises(ValueError, match="multiplier"):
            hashing.private_multiplier(wrong)
    with pytest.raises(TypeError, match="multiplier"):
        hashing.private_multiplier(1.0)  # type: ignore[arg-type]


def test_finalisers_are_those_of_splitmix64_and_murmur3() -> None:
    # first output of splitmix64 with seed 0; MurmurHash3's fmix64(1)
    assert hashing.key_seed(0, False) == 0xE220A8397B1DCDAF
    assert hashing._finalise(np.array([1], np.uint64), hashing._MURMUR, 33)[0] == 0xB456BCFC34C2CB2C


def test_hash_is_pinned() -> None:
    # Places and owners depend on it: a change makes every snapshot unreadable.
    ids = np.array([0, 1, 1 << 63, (1 << 64) - 1], np.uint64)
    assert [f"{h:016x}" for h in hashing.mix64(7, False, ids)] == PINNED
    assert [f"{h:016x}" for h in hashing.mix64(7, True, ids[:1])] == PINNED_MISSING


PINNED = ["8719c4170d0aaf1a", "294e0d8b1df5ad01", "2594772162965867", "5250bb34338efe41"]
PINNED_MISSING = ["a12859a65e3e08ea"]


@given(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.lists(st.integers(0, 2**64 - 1), max_size=20),
    st.integers(1, 2**40),
)
def test_native_hash_equals_twin(uid: int, missing: bool, ids: list[int], capacity: int) -> None:
    array = np.array(ids, np.uint64)
    hashes = hashing.mix64(uid, missing, array)
    np.testing.assert_array_equal(_dit.mix64(uid, missing, array), hashes)
    for multiplier in MULTIPLIERS:
        positions = hashing.permuted(hashes, multiplier)
        np.testing.assert_array_equal(_dit.permuted(hashes, multiplier), positions)
        homes = hashing.probe_home(positions, capacity)
        np.testing.assert_array_equal(_dit.probe_home(positions, capacity), homes)
        assert ((homes >= 0) & (homes < capacity)).all()
        assert (np.diff(homes[np.argsort(positions)]) >= 0).all()  # so that a rehash is nearly sequential


words = st.integers(0, 2**64 - 1)
odd = words.map(lambda x: x | 1)


@given(st.lists(words | st.sampled_from([0, 1, 2**63, 2**64 - 1]), max_size=20), odd)
def test_native_scattered_and_permuted_equal_their_twins(numbers: list[int], multiplier: int) -> None:
    array = np.array(numbers, np.uint64)
    for native, twin in ((_dit.scattered, hashing.scattered), (_dit.permuted, hashing.permuted)):
        ours, theirs = native(array, multiplier), twin(array, multiplier)
        assert ours.dtype == theirs.dtype == np.uint64
        np.testing.assert_array_equal(ours, theirs)


def test_scattered_and_permuted_are_pinned() -> None:
    numbers = np.array([1, 2**63, 2**64 - 1], np.uint64)
    assert [f"{x:016x}" for x in hashing.scattered(numbers, MULTIPLIERS[0]).tolist()] == PINNED_SCATTERED
    assert [f"{x:016x}" for x in hashing.permuted(numbers, MULTIPLIERS[0]).tolist()] == PINNED_PERMUTED


PINNED_SCATTERED = ["df442d22ce4859b9", "a08659b4a77eeed2", "61c8864680b583eb"]
PINNED_PERMUTED = ["9c60c2250d20ca74", "9fac3a7aa77eeed2", "7faf86edc05b932f"]


def unpermuted(positions: np.ndarray, multiplier: int) -> np.ndarray:
    """`hashing.permuted` backwards: x ^ (x >> 32) is its own inverse."""
    factor, half = np.uint64(pow(multiplier, -1, 1 << 64)), np.uint64(32)
    twice = positions * factor
    once = (twice ^ (twice >> half)) * factor
    return (once ^ (once >> half)) * factor


@given(st.lists(words, max_size=20), odd)
def test_permuted_is_a_bijection(numbers: list[int], multiplier: int) -> None:
    array = np.array(numbers, np.uint64)
    np.testing.assert_array_equal(unpermuted(_dit.permuted(array, multiplier), multiplier), array)
    np.testing.assert_array_equal(_dit.permuted(unpermuted(array, multiplier), multiplier), array)


@given(
    st.lists(words | st.sampled_from([0, 1, 2**63, 2**64 - 1]), max_size=30, unique=True),
    st.integers(0, 2**32 - 1),
    odd,
)
def test_ids_come_back_from_the_hashes_that_the_index_stores(ids: list[int], uid: int, multiplier: int) -> None:
    with DIT([IndexTable(uid, 0)], num_shards=1, multiplier=multiplier) as dit:
        mask = np.zeros(len(ids) + 1, np.bool_)
        mask[-1] = True
        ticket = dit.index([IdColumn(0, np.array([*ids, 5], np.uint64), mask)]).ticket
        assert ticket is not None
        dit.commit(ticket)
        rows = dit.rows_of_buckets()
        assert sorted(zip(rows.missing.tolist(), rows.ids.tolist(), strict=True)) == [
            *sorted((False, i) for i in ids),
            (True, 0),
        ]


def test_route_shard_and_low_bits_are_disjoint_and_complete() -> None:
    hashes = hashing.mix64(1, False, np.arange(1000, dtype=np.uint64))
    route, shard = hashing.route_bucket(hashes), hashing.shard_of(hashes, 64)
    low = hashes & np.uint64((1 << 42) - 1)
    np.testing.assert_array_equal((route << np.uint64(48)) | (shard << np.uint64(42)) | low, hashes)
    np.testing.assert_array_equal(hashing.shard_of(hashes, 8), shard >> np.uint64(3))
    assert not hashing.shard_of(hashes, 1).any()


@pytest.mark.parametrize("kind", IDS)
def test_regular_ids_spread_over_owners_shards_and_probes(kind: str) -> None:  # P46, L115
    n = 1 << 18
    hashes = hashing.mix64(3, False, IDS[kind](n))
    route = hashing.route_bucket(hashes)
    assert _max_over_mean(route, hashing.ROUTE_BUCKETS) < 6.0  # mean 4: a Poisson maximum is about 18
    for world_size in (3, 8, 64):
        assert _max_over_mean(route * np.uint64(world_size) >> np.uint64(16), world_size) < 1.1
    assert _max_over_mean(hashing.shard_of(hashes, 64), 64) < 1.1
    assert _max_over_mean(_dit.probe_home(_dit.permuted(hashes, MULTIPLIERS[0]), 1000).astype(np.uint64), 1000) < 1.5
    of_one_rank = hashes[route < 1024]  # 1/64 of the keys: still spread over shards and probes
    assert _max_over_mean(hashing.shard_of(of_one_rank, 64), 64) < 1.6
    assert _max_over_mean(_dit.probe_home(_dit.permuted(of_one_rank, MULTIPLIERS[0]), 64).astype(np.uint64), 64) < 1.6


def test_every_input_bit_moves_every_output_bit_half_of_the_time() -> None:
    ids = np.random.default_rng(5).integers(0, 2**64, 2000, np.uint64)
    hashes = hashing.mix64(9, False, ids)
    for bit in range(64):
        changed = hashes ^ hashing.mix64(9, False, ids ^ np.uint64(1 << bit))
        flips = (changed[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)  # (ids, output bits)
        assert np.abs(flips.mean(axis=0) - 0.5).max() < 0.07


def test_tables_and_the_missing_flag_change_the_hash() -> None:
    zero = np.zeros(1, np.uint64)
    hashes = {int(hashing.mix64(uid, missing, zero)[0]) for uid in range(1000) for missing in (False, True)}
    assert len(hashes) == 2000


def _max_over_mean(picks: np.ndarray, buckets: int) -> float:
    counts = np.bincount(picks.astype(np.int64), minlength=buckets)
    assert len(counts) == buckets
    return float(counts.max() / counts.mean())
