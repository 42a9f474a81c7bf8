"""What a DataLoader has handed out, and how long the trainer waited for it."""

from __future__ import annotations

import time
from typing import Any

from headrace.ingest.batch import Batch


class LoaderStats:
    """Running sums over the batches handed out; O(1) memory.

    Keys of :meth:`summary` (shares are between 0 and 1, None before there is anything to divide by):

    ==================== ==============================================================================
    `rows`, `batches`    handed out
    `ids`                categorical values looked up
    `unique_share`       unique rows of the batches over ids
    `hit_rate`           unique rows that were in the arena for an earlier step, over unique rows
    `r_rows`             rows pinned in the R chunk
    `r_coverage`         ids that fall on pinned rows, over ids
    `r_coverage_unique`  unique rows that are pinned, over unique rows
    `bytes_planned`      bytes that the plans move between host and device, both directions
    `trainer_wait_s`     seconds that `next` took
    `trainer_wait_share` the same over the seconds between the first `next` and the last
    `rows_per_s`         rows over those seconds
    ==================== ==============================================================================
    """

    def __init__(self) -> None:
        self._batches = self._rows = self._ids = self._unique = 0
        self._hits = self._planned = self._bytes = 0
        self._hot_ids = self._hot_unique = self._r_rows = 0
        self._wait_s = self._span_s = 0.0
        self._begin: float | None = None

    def add(self, batch: Batch, *, wait_s: float) -> None:
        """Count a batch for which the trainer waited `wait_s` seconds until now."""
        now = time.perf_counter()
        if self._begin is None:
            self._begin = now - wait_s
        self._span_s = now - self._begin
        self._wait_s += wait_s
        self._batches += 1
        self._rows += batch.num_rows
        for group in batch.groups:
            self._ids += group.query_ids.numel()
            self._unique += group.num_unique
        if batch.plan is not None:
            self._add_plan(batch)

    def _add_plan(self, batch: Batch) -> None:
        plan = batch.plan
        assert plan is not None
        self._bytes += plan.bytes_fetched + plan.bytes_written_back
        self._r_rows = sum(g.r_rows for g in plan.groups)
        for planned, group in zip(plan.groups, batch.groups, strict=True):
            self._hits += planned.hits
            self._planned += planned.requested
            if planned.r_rows:
                counts = group.position_offsets.diff().numpy()
                self._hot_ids += int(counts[planned.hot].sum())
                self._hot_unique += int(planned.hot.sum())

    def summary(self) -> dict[str, Any]:
        """The keys of the class docstring."""
        return {
            "rows": self._rows,
            "batches": self._batches,
            "ids": self._ids,
            "unique_share": _share(self._unique, self._ids),
            "hit_rate": _share(self._hits, self._planned),
            "r_rows": self._r_rows,
            "r_coverage": _share(self._hot_ids, self._ids),
            "r_coverage_unique": _share(self._hot_unique, self._unique),
            "bytes_planned": self._bytes,
            "trainer_wait_s": self._wait_s,
            "trainer_wait_share": _share(self._wait_s, self._span_s),
            "rows_per_s": _share(self._rows, self._span_s),
        }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
