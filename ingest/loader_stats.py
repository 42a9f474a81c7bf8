"""What a DataLoader has handed out, and how long the trainer waited for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.ingest.batch import Batch
from headrace.ingest.nodes.read_rows import ReadRows

_SUMS = (
    "batches", "rows", "ids", "unique", "hits", "planned", "bytes", "hot_ids", "hot_unique", "r_rows", "wait_s",
    "rows_in", "rows_skipped",
)  # fmt: skip


class LoaderStats:
    """Running sums over the batches handed out; O(1) memory.

    `reads` says whether rows are read from files by a node that counts them.

    Keys of :meth:`summary` (shares are between 0 and 1, None before there is anything to divide by):

    ==================== ==============================================================================
    `rows`, `batches`    handed out
    `rows_in`            rows read from files, bad ones counted and read ahead included; None without a ReadRows
    `rows_skipped`       of these, bad ones left out
    `ids`                categorical values looked up
    `unique_share`       unique rows of the batches over ids
    `hit_rate`           unique rows that were in the arena for an earlier step, over unique rows
    `r_rows`             rows pinned in the R chunk
    `r_coverage`         ids that fall on pinned rows, over ids
    `r_coverage_unique`  unique rows that are pinned, over unique rows
    `bytes_planned`      bytes that the plans move between host and device, both directions
    `trainer_wait_s`     seconds that `next` took
    `trainer_wait_share` the same over the seconds between the first `next` of an epoch and its last
    `rows_per_s`         rows over those seconds
    ==================== ==============================================================================
    """

    def __init__(self, *, reads: bool) -> None:
        self._counted = reads
        self._batches = self._rows = self._ids = self._unique = 0
        self._hits = self._planned = self._bytes = 0
        self._hot_ids = self._hot_unique = self._r_rows = 0
        self._wait_s = 0.0
        self._span_s = 0.0  # of the epochs before
        self._begin: float | None = None  # first `next` of the running epoch
        self._last = 0.0
        self._read: ReadRows | None = None
        self._rows_in = self._rows_skipped = 0  # of the epochs before, less what a resumed one had counted

    def totals(self, *, rows_in: int, rows_skipped: int) -> dict[str, float]:
        """The sums, as plain data for :meth:`restore`; the arguments are those counts of an epoch that is under way, as
        the state says that is saved beside them (what was read ahead is read again).
        """
        sums = {name: getattr(self, f"_{name}") for name in _SUMS}
        if self._read is not None:
            sums["rows_in"] += rows_in
            sums["rows_skipped"] += rows_skipped
        return {**sums, "span_s": self._span()}

    def restore(self, totals: Mapping[str, float]) -> None:
        """Go on from sums that :meth:`totals` gave, with the loader at the state of then. ValueError for others."""
        if not isinstance(totals, Mapping) or set(totals) != {*_SUMS, "span_s"}:
            raise ValueError(f"not the sums of a loader: {totals!r}")
        for name, value in totals.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"not the sums of a loader: {name} is {value!r}")
        for name in _SUMS:
            setattr(self, f"_{name}", totals[name])
        self._span_s, self._begin, self._read = float(totals["span_s"]), None, None

    def begin_epoch(self, read: ReadRows | None) -> None:
        """An epoch was started or resumed; `read` counts its rows."""
        self.end_epoch()
        self._read = read
        if read is not None:
            self._rows_in -= read.rows_in
            self._rows_skipped -= read.rows_skipped

    def end_epoch(self) -> None:
        """The epoch is over: its counts and its time are added up."""
        if self._read is not None:
            self._rows_in += self._read.rows_in
            self._rows_skipped += self._read.rows_skipped
            self._read = None
        self._span_s = self._span()
        self._begin = None

    def add(self, batch: Batch, *, wait_s: float) -> None:
        """Count a batch for which the trainer waited `wait_s` seconds until now."""
        now = time.perf_counter()
        if self._begin is None:
            self._begin = now - wait_s
        self._last = now
        self._wait_s += wait_s
        self._batches += 1
        self._rows += batch.num_rows if batch.valid is None else int(batch.valid.sum())
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
                hot, begins = np.flatnonzero(planned.hot), group.position_offsets.numpy()
                self._hot_ids += int((begins[hot + 1] - begins[hot]).sum())
                self._hot_unique += len(hot)

    @property
    def rows(self) -> int:
        return self._rows

    def _span(self) -> float:
        return self._span_s + (self._last - self._begin if self._begin is not None else 0.0)

    def summary(self) -> dict[str, Any]:
        """The keys of the class docstring."""
        read = self._read
        return {
            "rows": self._rows,
            "rows_in": self._rows_in + (read.rows_in if read else 0) if self._counted else None,
            "rows_skipped": self._rows_skipped + (read.rows_skipped if read else 0) if self._counted else None,
            "batches": self._batches,
            "ids": self._ids,
            "unique_share": _share(self._unique, self._ids),
            "hit_rate": _share(self._hits, self._planned),
            "r_rows": self._r_rows,
            "r_coverage": _share(self._hot_ids, self._ids),
            "r_coverage_unique": _share(self._hot_unique, self._unique),
            "bytes_planned": self._bytes,
            "trainer_wait_s": self._wait_s,
            "trainer_wait_share": _share(self._wait_s, self._span()),
            "rows_per_s": _share(self._rows, self._span()),
        }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
