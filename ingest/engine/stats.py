"""What a node did since its last reset, counted cheaply."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

_PER_OCTAVE = 4
_OCTAVES = 40
"""Latencies from 1 microsecond to 2^40 microseconds, in steps of a quarter octave (19 %)."""


@dataclass(frozen=True)
class NodeStats:
    """Counters of one node since its last ``reset()``.

    =================== =======================================================================================
    `items`             delivered by ``next()``
    `bytes`             of the delivered items, where they tell (arrays, tensors, Arrow data); else 0
    `busy_s`            own work; summed over the node's threads
    `wait_in_s`         waiting for the source
    `wait_out_s`        threads waiting because the buffer is full: the consumer is the slow side
    `next_s`            consumer inside ``next()``: of the outermost node, the time that the trainer waited
    `queue_depth`       items ready to be taken, now
    `skipped`           rows or items left out, by policy or by ``drop_last``
    `p50_ms` ...        quantiles of the duration of ``next()``, to 19 %
    =================== =======================================================================================
    """

    name: str
    items: int
    bytes: int
    busy_s: float
    wait_in_s: float
    wait_out_s: float
    next_s: float
    queue_depth: int
    skipped: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


class LatencyHistogram:
    """Durations in fixed, logarithmic bins: constant memory, no sorting, no allocation a sample."""

    __slots__ = ("_bins", "_count")

    def __init__(self) -> None:
        self._bins = [0] * (_PER_OCTAVE * _OCTAVES)
        self._count = 0

    def add(self, seconds: float) -> None:
        microseconds = seconds * 1e6
        position = int(_PER_OCTAVE * math.log2(microseconds)) if microseconds > 1 else 0
        self._bins[min(position, len(self._bins) - 1)] += 1
        self._count += 1

    def quantile_ms(self, share: float) -> float:
        """Upper bound of the bin that holds the quantile; 0 without samples."""
        rank = math.ceil(share * self._count)
        if rank == 0:
            return 0.0
        position = bisect_left(list(accumulate(self._bins)), rank)
        return float(2 ** ((position + 1) / _PER_OCTAVE) / 1e3)


class Meter:
    """Counters that a node updates on its way."""

    __slots__ = ("bytes", "items", "latency", "next_s", "skipped", "wait_in_s")

    def __init__(self) -> None:
        self.items = 0
        self.bytes = 0
        self.next_s = 0.0
        self.wait_in_s = 0.0
        self.skipped = 0
        self.latency = LatencyHistogram()

    def delivered(self, item: object, seconds: float) -> None:
        self.items += 1
        self.bytes += item_bytes(item)
        self.latency.add(seconds)


def item_bytes(item: Any) -> int:
    """Bytes of an item that tells (``nbytes`` of it or of its ``data``, or a bytes object); else 0."""
    if isinstance(item, (bytes, bytearray)):
        return len(item)
    size = getattr(item, "nbytes", None)
    if not isinstance(size, int):  # only then `data`, which some items make when they are asked for it
        size = getattr(getattr(item, "data", None), "nbytes", None)
    return size if isinstance(size, int) else 0
