"""Ids that no file holds: crosses of features, and buckets of dense values. Pure functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.formats.schema import Bucketing

U64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]

# The cross of n parts is h_n, with h_0 = mix(n) and h_i = mix(h_{i-1} * MULTIPLIER + mix(id_i) + missing_i * MISSING),
# all modulo 2^64, id_i = 0 where missing_i; mix is the finaliser of SplitMix64 (Steele, Lea, Flood, 2014). These ids
# are stored with models: the function never changes.
MULTIPLIER = 0x9E3779B97F4A7C15
MISSING = 0xD1B54A32D192ED03
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_MIX_LAST_SHIFT = 31


def _mix(words: U64) -> U64:
    for shift, multiplier in _MIX:
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(multiplier)
    mixed: U64 = words ^ (words >> np.uint64(_MIX_LAST_SHIFT))
    return mixed


def cross_ids(parts: Sequence[tuple[npt.NDArray[Any], Bool | None]]) -> U64:
    """uint64 [B] of (ids [B], uint32 or 64-bit, missing [B] or None) of each part; the order of the parts counts.

    Two different rows get the same id with a chance of 2^-64.
    """
    rows = len(parts[0][0])
    state = _mix(np.full(rows, len(parts), np.uint64))
    for ids, missing in parts:
        words = ids.view(np.uint64) if ids.dtype == np.int64 else ids.astype(np.uint64)
        if missing is not None:
            words = np.where(missing, np.uint64(0), words)
        mixed = _mix(words)
        if missing is not None:
            mixed = mixed + missing * np.uint64(MISSING)
        state = _mix(state * np.uint64(MULTIPLIER) + mixed)
    return state


def bucket_ids(values: npt.NDArray[Any], boundaries: Sequence[float], bucketing: Bucketing) -> U64:
    """uint64 [B] of finite numbers [B]: how many boundaries are at most the value, or the log-square bucket.

    The log-square bucket of a number below 0 is a negative integer, in two's complement.
    """
    if bucketing == "boundaries":
        edges = np.asarray(boundaries, np.float64)
        return np.searchsorted(edges, values.astype(np.float64), side="right").astype(np.uint64)
    if values.dtype.kind == "i":
        low = values.astype(np.int64)
    else:
        low = np.trunc(np.clip(values, -(2.0**62), 2.0)).astype(np.int64)
    logarithm = np.log(np.maximum(values.astype(np.float64), 1.0))
    return np.where(values > 2, np.floor(logarithm * logarithm).astype(np.int64), low).view(np.uint64)
