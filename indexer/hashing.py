"""The one hash of a key, and which of its bits decide what (twin of ``hashing.hpp``).

``hash = route 16 | shard 6 | low 42`` bits, from the top: the owner and the shard within the owner's index are picked
by disjoint bits, so that keys that share the one are still spread over the other. The position within a shard is picked
by the whole hash under an odd multiplier that is private to the index: the hash is known and can be inverted, so that
without it crafted ids could all meet in one place. Owners, shards and places never depend on the multiplier, only the
time does.
The finalisers are those of splitmix64 (Stafford's mix 13) and MurmurHash3.
"""

from __future__ import annotations

import secrets

import numpy as np

from headrace.indexer.checks import check_integer
from headrace.indexer.indexed import I64, U64

ROUTE_BITS = 16
SHARD_BITS = 6
LOW_BITS = 42
ROUTE_BUCKETS = 1 << ROUTE_BITS
MAX_SHARDS = 1 << SHARD_BITS

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SPLITMIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_MURMUR = ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53))


def key_seed(table_uid: int, missing: bool) -> int:
    """What a table and the missing flag contribute to the hash."""
    return int(_finalise(np.array([(table_uid << 1 | missing) + _GOLDEN & _WORD], np.uint64), _SPLITMIX, 31)[0])


def mix64(table_uid: int, missing: bool, ids: U64) -> U64:
    """Hashes, uint64 [n], of the keys (table, missing, id) for ids uint64 [n]; a bijection of the id."""
    seed = np.uint64(key_seed(table_uid, missing))
    return _finalise(_finalise(ids ^ seed, _SPLITMIX, 31) + seed, _MURMUR, 33)


def route_bucket(hashes: U64) -> U64:
    """Which of the 65,536 route buckets: the top 16 bits."""
    buckets: U64 = hashes >> np.uint64(SHARD_BITS + LOW_BITS)
    return buckets


def shard_of(hashes: U64, num_shards: int) -> U64:
    """Which of `num_shards` shards (a power of two, at most 64): the top bits of the 6 shard bits."""
    bits: U64 = (hashes >> np.uint64(LOW_BITS)) & np.uint64(MAX_SHARDS - 1)
    bits >>= np.uint64(SHARD_BITS - (num_shards.bit_length() - 1))
    return bits


def private_multiplier(given: int | None = None) -> int:
    """An odd 64-bit number that nobody can guess; or `given`, checked, for runs whose instructions must repeat."""
    if given is None:
        return secrets.randbits(64) | 1
    multiplier = check_integer("multiplier", given, 1, _WORD)
    if multiplier % 2 == 0:
        raise ValueError(f"multiplier is {multiplier}; it must be odd")
    return multiplier


def scattered(numbers: U64, multiplier: int) -> U64:
    """Where a scratch table looks for ids: the halves of the 128-bit product, folded, times the multiplier again."""
    products = (number * multiplier for number in numbers.tolist())
    return np.array([((p & _WORD) ^ (p >> 64)) * multiplier & _WORD for p in products], np.uint64)


def permuted(numbers: U64, multiplier: int) -> U64:
    """Hashes as one index sees them, a bijection: multiplied three times, the upper half folded into the lower between."""
    factor, half = np.uint64(multiplier), np.uint64(32)
    once = numbers * factor
    twice = (once ^ (once >> half)) * factor
    return (twice ^ (twice >> half)) * factor


def probe_home(positions: U64, capacity: int) -> I64:
    """Where probing starts in a shard of `capacity` entries: floor(permuted hash * capacity / 2^64)."""
    return np.array([position * capacity >> 64 for position in positions.tolist()], np.int64)


def _finalise(x: U64, rounds: tuple[tuple[int, int], ...], last: int) -> U64:
    for shift, factor in rounds:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = x ^ (x >> np.uint64(last))
    return x
