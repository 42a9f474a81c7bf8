"""How often each id occurs, counted exactly in bounded memory: what does not fit waits on disk in sorted runs.

A counter collects ids, and reduces them to sorted runs of (id, count). Runs of similar size are merged, so that each id
is merged O(log) times. When all counters together hold more than their budget, the largest writes its run to disk; at
the end all runs are merged block by block. A billion distinct ids thus take 16 GB of disk and no more memory than ten
million do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from headrace.formats.atomic_file import named_errors
from headrace.formats.bad_lines import I64
from headrace.formats.checks import check_integer
from headrace.formats.text_values import U64

DEFAULT_MAX_ENTRIES = 1 << 25
_BUFFER_IDS = 1 << 17
_MERGE_ROWS = 1 << 15
TOP = 20


class Run(NamedTuple):
    """Distinct ids in ascending order, and how often each occurred."""

    ids: U64
    counts: I64


@dataclass(frozen=True)
class CountSummary:
    """What is known of a feature's ids once all are counted.

    `counts` (descending) and `ids_with_count`, int64 [n] each: so many ids occurred just so often. `top` holds the ids
    that occurred most, as (id, count), the smaller id first of equals.
    """

    cardinality: int
    total: int
    counts: I64
    ids_with_count: I64
    top: tuple[tuple[int, int], ...]

    def covered(self, ids: I64) -> I64:
        """int64 [n]: occurrences of the `ids` (int64 [n], numbers of ids) most frequent ids together."""
        after = np.cumsum(self.ids_with_count)
        covered_after = np.cumsum(self.counts * self.ids_with_count)
        at = np.minimum(np.searchsorted(after, ids), max(0, len(after) - 1))
        if not len(after):
            return np.zeros(len(ids), np.int64)
        covered: I64 = covered_after[at] - np.maximum(after[at] - ids, 0) * self.counts[at]
        return covered

    def needed(self, share: float) -> int:
        """The least number of ids that have at least this share of all occurrences."""
        target = int(np.ceil(share * self.total))
        covered_after = np.cumsum(self.counts * self.ids_with_count)
        at = int(np.searchsorted(covered_after, target))
        if at >= len(covered_after):
            return self.cardinality
        before = int(covered_after[at - 1]) if at else 0
        ids_before = int(self.ids_with_count[:at].sum())
        return ids_before + -(-(target - before) // int(self.counts[at]))


class IdCounters:
    """One counter for each name; together they hold at most about `max_entries` ids or (id, count) pairs in memory.

    An entry takes 16 bytes, merging as much again. Runs that do not fit lie in a temporary folder (in `folder`, or in
    TMPDIR), which `close` removes.
    """

    def __init__(
        self, names: Sequence[str], *, max_entries: int = DEFAULT_MAX_ENTRIES, folder: str | Path | None = None
    ) -> None:
        self._max_entries = check_integer("max_entries", max_entries, 1, 1 << 40)
        self._counters = {name: _Counter() for name in names}
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-counts-", dir=folder)
        self._spilled = 0
        self._entries = 0

    @property
    def runs_on_disk(self) -> int:
        return self._spilled

    def add(self, name: str, ids: U64) -> None:
        """Count these ids once each (uint64 [n]; a copy is kept)."""
        counter = self._counters[name]
        before = counter.entries
        counter.add(ids)
        self._entries += counter.entries - before
        while self._entries > self._max_entries:
            self._spill()

    def _spill(self) -> None:
        largest = max(self._counters.values(), key=lambda counter: counter.entries)
        before = largest.entries
        run = largest.take()
        path = Path(self._folder.name) / f"{self._spilled:06d}"
        for part, array in zip(Run._fields, run, strict=True):
            with named_errors(f"{path}.{part}.npy"):
                np.save(f"{path}.{part}.npy", array)
        largest.on_disk.append(path)
        self._spilled += 1
        self._entries -= before

    def blocks(self, name: str) -> Iterator[Run]:
        """All (id, count) of a name in ascending order of ids, in blocks; nothing may be added in between."""
        counter = self._counters[name]
        before = counter.entries
        counter.compact()
        self._entries += counter.entries - before
        runs = [
            Run(*(np.load(f"{path}.{part}.npy", mmap_mode="r") for part in Run._fields)) for path in counter.on_disk
        ]
        return merge_runs([*runs, *counter.runs])

    def summary(self, name: str) -> CountSummary:
        """Everything of a name but the ids; exact."""
        cardinality, total = 0, 0
        by_count: dict[int, int] = {}
        top = Run(np.zeros(0, np.uint64), np.zeros(0, np.int64))
        for block in self.blocks(name):
            cardinality += len(block.ids)
            total += int(block.counts.sum())
            for count, ids in zip(*(a.tolist() for a in np.unique(block.counts, return_counts=True)), strict=True):
                by_count[count] = by_count.get(count, 0) + ids
            top = _top(top, block)
        counts = np.array(sorted(by_count, reverse=True), np.int64)
        return CountSummary(
            cardinality=cardinality,
            total=total,
            counts=counts,
            ids_with_count=np.array([by_count[count] for count in counts.tolist()], np.int64),
            top=tuple(zip(top.ids.tolist(), top.counts.tolist(), strict=True)),
        )

    def close(self) -> None:
        """Remove what lies on disk."""
        self._folder.cleanup()

    def __enter__(self) -> IdCounters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Counter:
    """Ids of one name: raw ones in `_raw`, runs in memory in descending order of size, runs on disk."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.on_disk: list[Path] = []
        self._raw: list[U64] = []
        self._raw_ids = 0

    @property
    def entries(self) -> int:
        return self._raw_ids + sum(len(run.ids) for run in self.runs)

    def add(self, ids: U64) -> None:
        self._raw.append(ids.astype(np.uint64))
        self._raw_ids += len(ids)
        if self._raw_ids >= _BUFFER_IDS:
            self._reduce()

    def _reduce(self) -> None:
        if self._raw_ids:
            ids, counts = np.unique(np.concatenate(self._raw), return_counts=True)
            self.runs.append(Run(ids, counts.astype(np.int64)))
        self._raw, self._raw_ids = [], 0
        while len(self.runs) > 1 and len(self.runs[-1].ids) * 2 > len(self.runs[-2].ids):
            self._merge_last()

    def _merge_last(self) -> None:
        last, before = self.runs.pop(), self.runs.pop()
        self.runs.append(_sum([before, last]))

    def compact(self) -> None:
        """One run, at most, in memory."""
        self._reduce()
        while len(self.runs) > 1:
            self._merge_last()

    def take(self) -> Run:
        """All that is in memory, which is empty then."""
        self.compact()
        (run,) = self.runs or [Run(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
        self.runs = []
        return run


def merge_runs(runs: Sequence[Run], *, rows: int = _MERGE_ROWS) -> Iterator[Run]:
    """The sum of runs as blocks of ascending ids; at most `rows` of each run are looked at at a time."""
    at = [0] * len(runs)
    while True:
        open_runs = [i for i, run in enumerate(runs) if at[i] < len(run.ids)]
        if not open_runs:
            return
        heads = {i: _part(runs[i], at[i], rows) for i in open_runs}
        unfinished = [h.ids[-1] for i, h in heads.items() if at[i] + rows < len(runs[i].ids)]
        border = min(unfinished, default=None)
        parts = []
        for i, head in heads.items():
            taken = len(head.ids) if border is None else int(np.searchsorted(head.ids, border, side="right"))
            parts.append(Run(head.ids[:taken], head.counts[:taken]))
            at[i] += taken
        yield _sum(parts)


def _part(run: Run, first: int, rows: int) -> Run:
    return Run(np.asarray(run.ids[first : first + rows]), np.asarray(run.counts[first : first + rows]))


def _sum(runs: Sequence[Run]) -> Run:
    ids, counts = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    order = np.argsort(ids, kind="stable")
    ids, counts = ids[order], counts[order]
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(ids)), np.bool_), ids[1:] != ids[:-1]]))
    return Run(ids[first], np.add.reduceat(counts, first) if len(first) else counts)


def _top(top: Run, block: Run) -> Run:
    least = int(top.counts[-1]) if len(top.ids) == TOP else 1
    chosen = np.flatnonzero(block.counts > least - (len(top.ids) < TOP))
    ids = np.concatenate([top.ids, block.ids[chosen]])
    counts = np.concatenate([top.counts, block.counts[chosen]])
    order = np.lexsort((ids, -counts))[:TOP]
    return Run(ids[order], counts[order])
