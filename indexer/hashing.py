"""The one hash of a key, and which of its bits decide what (twin of ``hashing.hpp``).

``hash = route 16 | shard 6 | probe 42`` bits, from the top: the owner, the shard within the owner's index and the
position within the shard are picked by disjoint bits, so that keys that share one are still spread over the next.
The finalisers are those of splitmix64 (Stafford's mix 13) and MurmurHash3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

ROUTE_BITS = 16
SHARD_BITS = 6
PROBE_BITS = 42
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
    buckets: U64 = hashes >> np.uint64(SHARD_BITS + PROBE_BITS)
    return buckets


def shard_of(hashes: U64, num_shards: int) -> U64:
    """Which of `num_shards` shards (a power of two, at most 64): the top bits of the 6 shard bits."""
    bits: U64 = (hashes >> np.uint64(PROBE_BITS)) & np.uint64(MAX_SHARDS - 1)
    bits >>= np.uint64(SHARD_BITS - (num_shards.bit_length() - 1))
    return bits


def probe_home(hashes: U64, capacity: int) -> npt.NDArray[np.int64]:
    """Where probing starts in a shard of `capacity` entries: floor(probe bits * capacity / 2^42)."""
    probe = hashes & np.uint64((1 << PROBE_BITS) - 1)
    return np.array([int(p) * capacity >> PROBE_BITS for p in probe], np.int64)


def _finalise(x: U64, rounds: tuple[tuple[int, int], ...], last: int) -> U64:
    for shift, factor in rounds:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = x ^ (x >> np.uint64(last))
    return x
