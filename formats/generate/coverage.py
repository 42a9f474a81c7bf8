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
    below = np.cumsum(n)
    whole = int(np.searchsorted(below, rows, side="right"))
    share = float((p[:whole] * n[:whole]).sum())
    if whole < len(p):
        share += float(p[whole] * (rows - (below[whole - 1] if whole else 0.0)))
    return share / len(laws)


def expected_unique_share(laws: Sequence[Law], batch_rows: int) -> float:
    """Expected distinct table rows of a batch over its number of values (rows times columns)."""
    p, n = table_rows(laws)
    with np.errstate(divide="ignore"):  # log1p(-1) = -inf for a value that is always there: one distinct row
        seen = -np.expm1(batch_rows * np.log1p(-p))
    return float((seen * n).sum() / (batch_rows * len(laws)))


def _tail_grid(first: int, cardinality: int) -> tuple[F64, F64]:
    """Inclusive rank ranges that cover first .. cardinality - 1, each 0.2 % longer than the one before."""
    steps = int(np.ceil(np.log(cardinality / first) / np.log(_GRID_RATIO))) + 1
    edges = np.unique(np.round(np.geomspace(first, cardinality, steps + 1)))
    return edges[:-1], edges[1:] - 1
