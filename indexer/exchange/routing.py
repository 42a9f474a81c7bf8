"""Which rank owns a key: 65,536 route buckets, in runs of equal length, over the ranks."""

from __future__ import annotations

import numpy as np

from headrace.indexer.hashing import ROUTE_BITS, route_bucket
from headrace.indexer.indexed import I64, U64


def owners_of(hashes: U64, size: int) -> I64:
    """Owner, int64 [n], of each of the keys with these hashes, among `size` ranks."""
    return (route_bucket(hashes).astype(np.int64) * size) >> ROUTE_BITS
