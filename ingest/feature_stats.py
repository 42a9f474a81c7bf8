"""Statistics of each column of a dataset, over all rows, exact and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrow_buffers import null_mask, primitive_values
from headrace.formats.id_counts import DEFAULT_MAX_ENTRIES, CountSummary, IdCounters
from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema, Sparse
from headrace.ingest.columns import as_ids, column_mask, column_values, list_ids
from headrace.ingest.derived_ids import U64, Bool
from headrace.ingest.features import one_hot_ids

TOP_SHARES = (1, 10, 100, 1_000, 10_000, 100_000)
COVERAGE_SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
CURVE_POINTS = 60


@dataclass
class _Moments:
    """Number, mean, sum of squared differences from it, least and greatest of the values seen."""

    number: int = 0
    mean: float = 0.0
    squares: float = 0.0
    least: float = np.inf
    greatest: float = -np.inf

    def add(self, values: Any) -> None:
        if not len(values):
            return
        values = values.astype(np.float64)
        number, mean = self.number + len(values), float(values.mean())
        apart = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + apart * apart * self.number * len(values) / number
        self.mean += apart * len(values) / number
        self.number = number
        self.least, self.greatest = min(self.least, float(values.min())), max(self.greatest, float(values.max()))

    def report(self) -> dict[str, Any]:
        some = self.number > 0
        return {
            "mean": self.mean if some else None,
            "std": float(np.sqrt(self.squares / self.number)) if some else None,
            "min": self.least if some else None,
            "max": self.greatest if some else None,
        }


class FeatureStats:
    """Counts over row blocks: ids of every sparse feature (crosses and buckets, too), moments of dense ones and labels.

    Ids are those of the files, after ``modulo`` for crosses and buckets alone; a list counts all its ids. A missing
    value is no id; of a list it is a null list or an empty one, and null elements are counted apart. `max_entries` is
    the budget of :class:`IdCounters`: what goes beyond lies on disk.
    """

    def __init__(
        self, schema: Schema, *, max_entries: int = DEFAULT_MAX_ENTRIES, folder: str | Path | None = None
    ) -> None:
        self.schema = schema
        self.rows = 0
        self.counters = IdCounters([s.name for s in schema.sparse], max_entries=max_entries, folder=folder)
        self._missing = dict.fromkeys((c.name for kind in (schema.dense, schema.sparse) for c in kind), 0)
        self._null_elements = {s.name: 0 for s in schema.sparse}
        self._moments = {c.name: _Moments() for kind in (schema.labels, schema.dense) for c in kind}

    def add(self, block: RowBlock) -> None:
        self.rows += block.num_rows
        for name, moments in self._moments.items():
            values, mask = column_values(block, name), column_mask(block, name)
            if mask is not None:
                self._missing[name] += int(mask.sum())
                values = values[~mask]
            moments.add(values)
        for feature in self.schema.sparse:
            self.counters.add(feature.name, self._ids(block, feature))

    def _ids(self, block: RowBlock, feature: Sparse) -> U64:
        missing: Bool | None
        if feature.multi_hot:
            flat, lengths = list_ids(block, feature)
            self._missing[feature.name] += int(np.count_nonzero(lengths == 0))
            values, missing = as_ids(primitive_values(flat), feature.name), null_mask(flat)
            self._null_elements[feature.name] += 0 if missing is None else int(missing.sum())
        else:
            values, missing = one_hot_ids(block, self.schema, feature)
            self._missing[feature.name] += 0 if missing is None else int(missing.sum())
        ids: U64 = values if missing is None else values[~missing]
        return ids.astype(np.uint64, copy=False)

    def report(self) -> dict[str, Any]:
        """Plain data with stable keys: ``rows``; ``labels``, ``dense``, ``sparse``: a mapping for each column."""
        return {
            "rows": self.rows,
            "labels": [{"name": c.name, **self._moments[c.name].report()} for c in self.schema.labels],
            "dense": [
                {"name": c.name, **self._missing_of(c.name), **self._moments[c.name].report()}
                for c in self.schema.dense
            ],
            "sparse": [self._sparse(feature) for feature in self.schema.sparse],
        }

    def _missing_of(self, name: str) -> dict[str, Any]:
        missing = self._missing[name]
        return {"missing": missing, "missing_share": missing / self.rows if self.rows else None}

    def _sparse(self, feature: Sparse) -> dict[str, Any]:
        found = self.counters.summary(feature.name)
        return {
            "name": feature.name,
            "table": feature.table,
            **self._missing_of(feature.name),
            "missing_elements": self._null_elements[feature.name],
            "ids": found.total,
            "ids_per_row": found.total / self.rows if self.rows else None,
            "cardinality": found.cardinality,
            "seen_once": int(found.ids_with_count[-1]) if len(found.counts) and found.counts[-1] == 1 else 0,
            **coverage(found),
            "top_ids": [list(item) for item in found.top],
        }

    def close(self) -> None:
        self.counters.close()


def coverage(found: CountSummary) -> dict[str, Any]:
    """``top_share`` of the k most frequent ids, ``ids_for_share``, and the ``coverage`` curve [[ids, share], ..]."""
    total = max(1, found.total)
    sizes = np.unique(np.round(np.geomspace(1, max(1, found.cardinality), CURVE_POINTS)).astype(np.int64))
    shares = found.covered(sizes) / total
    return {
        "top_share": {
            str(k): float(found.covered(np.array([k]))[0] / total) for k in TOP_SHARES if k <= found.cardinality
        },
        "ids_for_share": {f"{share:g}": found.needed(share) for share in COVERAGE_SHARES} if found.total else {},
        "coverage": [[int(k), float(s)] for k, s in zip(sizes, shares, strict=True)] if found.total else [],
    }


def feature_stats(
    blocks: Iterable[RowBlock],
    schema: Schema,
    *,
    rows: int | None = None,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    folder: str | Path | None = None,
) -> dict[str, Any]:
    """The report of :class:`FeatureStats` over `blocks`, or over their first `rows` rows."""
    stats = FeatureStats(schema, max_entries=max_entries, folder=folder)
    try:
        for block in blocks:
            room = block.num_rows if rows is None else min(block.num_rows, rows - stats.rows)
            stats.add(block if room == block.num_rows else block.slice(0, room))
            if stats.rows == rows:
                break
        return stats.report()
    finally:
        stats.close()
