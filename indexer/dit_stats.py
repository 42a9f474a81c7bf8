"""What the index tells about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DitStats:
    """Counters of an index since it was made; probe lengths count the cache lines read per unique key of `index`.

    ====================== ==================================================================================
    `rows`, `provisional`  committed and uncommitted rows
    `free_places`          left by removed rows, for new ones
    `capacity`, `load`     entries allocated, and the share of them in use
    `nbytes`               bytes of entries, journals and chunk lists
    `counts_nbytes`        bytes of the counts of uses, as addresses: pages never counted in take no memory
    `scratch_nbytes`       bytes of reusable batch scratch
    `mean_probe_length`    1.0 is best; 0.0 before the first key
    `max_probe_length`     of any one key so far
    `growths`              enlargements of single shards
    `longest_call_ms`      longest `index` call, waiting for the call before it left out
    `shard_imbalance`      rows of the fullest shard over the mean; 1.0 is best, 0.0 if there are no rows
    `lock_wait_ms`         time that calls waited for shard locks, all together
    ====================== ==================================================================================
    """

    rows: int
    provisional: int
    free_places: int
    capacity: int
    nbytes: int
    counts_nbytes: int
    scratch_nbytes: int
    mean_probe_length: float
    max_probe_length: int
    growths: int
    longest_call_ms: float
    shard_imbalance: float
    lock_wait_ms: float

    @property
    def load(self) -> float:
        return (self.rows + self.provisional) / self.capacity if self.capacity else 0.0
