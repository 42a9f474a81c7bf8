"""Ids chosen by one who knows the hash: they cost about as much as any others."""

from __future__ import annotations

import time

import numpy as np
import pytest

from headrace.indexer import _dit, hashing
from headrace.indexer.dedup import Deduplicator
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexTable
from tests.support.index_batches import assert_same_ids

TABLES = (IndexTable(10, 0), IndexTable(20, 1))
MULTIPLIERS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
COUNT = 40_000
WORD = (1 << 64) - 1


def unmix64(table_uid: int, hashes: np.ndarray) -> np.ndarray:
    """Ids of these hashes: `hashing.mix64` backwards."""
    seed = np.uint64(hashing.key_seed(table_uid, False))
    inner = _unfinalise(hashes, hashing._MURMUR, 33) - seed
    return _unfinalise(inner, hashing._SPLITMIX, 31) ^ seed


def _unfinalise(x: np.ndarray, rounds: tuple[tuple[int, int], ...], last: int) -> np.ndarray:
    x = _unshift(x, last)
    for shift, factor in reversed(rounds):
        x = _unshift(x * np.uint64(pow(factor, -1, 1 << 64)), shift)
    return x


def _unshift(x: np.ndarray, shift: int) -> np.ndarray:
    """Inverse of x ^ (x >> shift), for shifts of 22 and more."""
    y = x ^ (x >> np.uint64(shift))
    return x ^ (y >> np.uint64(shift))


def one_home() -> np.ndarray:
    """Hashes of one shard of 64, whose 42 low bits are all below 2^20: one home without a private multiplier."""
    low = np.arange(COUNT, dtype=np.uint64) * np.uint64(26)
    return low | np.uint64(5 << 42)


def one_home_from_every_owner() -> np.ndarray:
    """As above, but with all 42 low bits equal, for the 65,536 routes."""
    return (np.arange(COUNT, dtype=np.uint64) << np.uint64(48)) | np.uint64(5 << 42) | np.uint64(0x3_1415_9265)


CRAFTED = {"one owner": one_home, "every owner": one_home_from_every_owner}


def mean_probe_length(ids: np.ndarray, multiplier: int | None) -> float:
    with DIT(TABLES, num_shards=1, multiplier=multiplier) as dit:
        for part in np.array_split(ids, 10):
            dit.index([IdColumn(0, part)])
        dit.undo_after(None)
        dit.index([IdColumn(0, ids)])
        return dit.stats().mean_probe_length


def test_the_hash_can_be_inverted() -> None:
    ids = np.random.default_rng(1).integers(0, 2**64, 1000, np.uint64)
    np.testing.assert_array_equal(unmix64(10, hashing.mix64(10, False, ids)), ids)


@pytest.mark.parametrize("kind", CRAFTED)
@pytest.mark.parametrize("multiplier", [*MULTIPLIERS, None])
def test_keys_made_for_one_home_take_about_as_many_probes_as_random_ones(kind: str, multiplier: int | None) -> None:
    ids = unmix64(10, CRAFTED[kind]())
    assert len(np.unique(ids)) == COUNT
    random = np.random.default_rng(2).integers(0, 2**64, COUNT, np.uint64)
    # 20,000 on average without a private multiplier
    assert mean_probe_length(ids, multiplier) < 1.5 * mean_probe_length(random, multiplier)


def scratch_steps(ids: np.ndarray, multiplier: int) -> float:
    """Mean slots looked at while the ids go into a scratch table of twice their number, by linear probing."""
    bits = (2 * len(ids) - 1).bit_length()
    taken, steps = set(), 0
    for position in _dit.scattered(ids, multiplier).tolist():
        slot = position >> (64 - bits)
        while slot in taken:
            slot = (slot + 1) % (1 << bits)
            steps += 1
        taken.add(slot)
    return 1 + steps / len(ids)


PUBLIC = 0x9E3779B97F4A7C15
SCRATCH_COUNT = 20_000
SCRATCH_IDS = {
    "sequence": np.arange(SCRATCH_COUNT, dtype=np.uint64),
    "equal low bits": np.arange(SCRATCH_COUNT, dtype=np.uint64) << np.uint64(44),
    "multiples of 2^20": np.arange(SCRATCH_COUNT, dtype=np.uint64) << np.uint64(20),
    "multiples of 2^32": np.arange(SCRATCH_COUNT, dtype=np.uint64) << np.uint64(32),
    "against the golden ratio": np.arange(SCRATCH_COUNT, dtype=np.uint64) * np.uint64(pow(PUBLIC, -1, 1 << 64)),
}


@pytest.mark.parametrize("kind", SCRATCH_IDS)
def test_crafted_and_regular_ids_are_spread_over_the_scratch_table(kind: str) -> None:
    """For whatever multiplier is drawn: of 30, none is bad. After a mere product about three would be."""
    rng = np.random.default_rng(3)
    for multiplier in rng.integers(0, 2**64, 30, np.uint64) | np.uint64(1):
        assert scratch_steps(SCRATCH_IDS[kind], int(multiplier)) < 1.7  # 1.3 is that of random ids


def test_deduplication_of_crafted_ids_takes_no_longer_than_of_random_ones() -> None:
    def seconds(ids: np.ndarray) -> float:
        with_least = []
        for _ in range(3):
            deduplicator = Deduplicator(TABLES)
            begin = time.thread_time()
            deduplicator.deduplicate([IdColumn(0, ids)])
            with_least.append(time.thread_time() - begin)
            deduplicator.close()
        return min(with_least)

    random = np.random.default_rng(4).integers(0, 2**64, SCRATCH_COUNT, np.uint64)
    # some hundred times as long with a public multiplier
    assert seconds(SCRATCH_IDS["against the golden ratio"]) < 20 * seconds(random)


def test_no_result_depends_on_the_multiplier() -> None:
    rng = np.random.default_rng(5)
    with DIT(TABLES, num_shards=4, multiplier=MULTIPLIERS[0]) as one, DIT(TABLES, num_shards=4) as other:
        deduplicators = [Deduplicator(TABLES, multiplier=m) for m in (MULTIPLIERS[1], None)]
        for step in range(12):
            batch = [
                IdColumn(int(rng.integers(2)), rng.integers(0, 9000, 3000).astype(dtype), rng.random(3000) < 0.01)
                for dtype in (np.uint32, np.uint64, np.uint64)
            ]
            expected = one.index(batch)
            assert_same_ids(other.index(batch), expected)
            assert_same_ids(*(d.deduplicate(batch) for d in deduplicators))
            if step % 4 == 2:
                for dit in (one, other):
                    dit.undo_after(expected.ticket - 1)
            elif step % 4 == 3:
                for dit in (one, other):
                    dit.commit(expected.ticket)
            assert_same_ids(other.lookup(batch), one.lookup(batch))
        assert one.snapshot().equals(other.snapshot(), check_metadata=True)
        with DIT(TABLES, num_shards=4, multiplier=MULTIPLIERS[1]) as copy:
            copy.restore(one.snapshot())
            assert_same_ids(copy.lookup(batch), one.lookup(batch))
            for a, b in zip(copy.index(batch).groups, one.index(batch).groups, strict=True):
                np.testing.assert_array_equal(a.locations, b.locations)
        for deduplicator in deduplicators:
            deduplicator.close()
