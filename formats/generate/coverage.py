"""What a set of popularity laws implies for a cache and for deduplication, worked out and not sampled.

Every row of the stream has one value in each column. A *row of a table* is one id of one column, or the missing value
of a column that has one. Tails are handled on a geometric grid of ranks, within which a probability varies by less
than 1 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.formats.generate.popularity import F64, Law

_GRID_RATIO = 1.002


def table_rows(laws: Sequence[Law]) -> tuple[F64, F64]:
    """(probability, count) of the table rows of all columns, most popular first, float64 [n] each.

    A probability is that of the value in one row of the stream; an entry with a count stands for that many table rows
    of nearly equal probability. Their products sum to the number of columns.
    """
    probability, count = [], []
    for law in laws:
        present = 1.0 - law.p_miss
        probability += [present * law.exact, np.array([law.p_miss])]
        count += [np.ones(len(law.exact)), np.ones(1)]
        if law.has_tail:
            first, last = _tail_grid(len(law.cdf), law.cardinality)
            size = last - first + 1
            probability.append(present * law.probability(first, last) / size)
            count.append(size)
    p, n = np.concatenate(probability), np.concatenate(count)
    order = np.argsort(-p, kind="stable")
    order = order[p[order] > 0]
    return p[order], n[order]


def coverage(laws: Sequence[Law], rows: int) -> float:
    """Share of all accesses that the `rows` most popular table rows take."""
    p, n = table_rows(laws)
    return float((p * _first(n, rows)).sum()) / len(laws)


def unique_coverage(laws: Sequence[Law], rows: int, batch_rows: int) -> float:
    """Share that the `rows` most popular table rows have in the distinct table rows of a batch, in expectation."""
    p, n = table_rows(laws)
    seen = _seen(p, batch_rows)
    return float((seen * _first(n, rows)).sum() / (seen * n).sum())


def expected_unique_share(laws: Sequence[Law], batch_rows: int) -> float:
    """Expected distinct table rows of a batch over its number of values (rows times columns)."""
    p, n = table_rows(laws)
    return float((_seen(p, batch_rows) * n).sum() / (batch_rows * len(laws)))


def _first(counts: F64, rows: int) -> F64:
    """How many of the first `rows` table rows are of each entry."""
    return np.clip(rows - (np.cumsum(counts) - counts), 0.0, counts)


def _seen(probability: F64, batch_rows: int) -> F64:
    """Chance that a batch holds a table row of such a probability."""
    with np.errstate(divide="ignore"):  # log1p(-1) = -inf for a value that is always there: one distinct row
        seen: F64 = -np.expm1(batch_rows * np.log1p(-probability))
    return seen


def _tail_grid(first: int, cardinality: int) -> tuple[F64, F64]:
    """Inclusive rank ranges that cover first .. cardinality - 1, each 0.2 % longer than the one before."""
    steps = int(np.ceil(np.log(cardinality / first) / np.log(_GRID_RATIO))) + 1
    edges = np.unique(np.round(np.geomspace(first, cardinality, steps + 1)))
    return edges[:-1], edges[1:] - 1
