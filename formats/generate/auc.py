"""Area under the ROC curve over any number of rows in fixed memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BINS = 1 << 16
_LIMIT = 16.0


class ScoreHistogram:
    """Counts of scores by label in 65,536 equal bins over [-16, 16]; scores outside go to the end bins.

    `auc()` takes rows of one bin as ties. Its distance from the exact area is at most `bound()`: half the share of
    (positive, negative) pairs that fall into one bin. Bins are 0.0005 wide; for the presets the bound is below 1e-4.
    Counts are integers, so histograms of parts add up to the same result in any order.
    """

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros((2, _BINS), np.int64)  # [label, bin]

    def add(self, scores: npt.NDArray[np.float32], labels: npt.NDArray[np.uint8]) -> None:
        """Count rows: scores float32 [n], labels uint8 [n] of 0 and 1."""
        scaled = (scores.astype(np.float64) + _LIMIT) * (_BINS / (2 * _LIMIT))
        bins = np.clip(scaled, 0, _BINS - 1).astype(np.int64)
        self._counts += np.bincount(bins + _BINS * labels.astype(np.int64), minlength=2 * _BINS).reshape(2, _BINS)

    def merge(self, other: ScoreHistogram) -> None:
        """Add the counts of `other`."""
        self._counts += other._counts

    @property
    def rows(self) -> int:
        return int(self._counts.sum())

    @property
    def positives(self) -> int:
        return int(self._counts[1].sum())

    def auc(self) -> float | None:
        """P(score of a positive > score of a negative) + P(equal)/2; None unless both labels occur."""
        negative, positive = self._counts.astype(np.float64)
        pairs = float(negative.sum() * positive.sum())
        if pairs == 0.0:
            return None
        below = np.cumsum(negative) - negative
        return float((positive * (below + 0.5 * negative)).sum() / pairs)

    def bound(self) -> float:
        """Largest possible error of `auc()`; 0 when it is None."""
        negative, positive = self._counts.astype(np.float64)
        pairs = float(negative.sum() * positive.sum())
        return float(0.5 * (negative * positive).sum() / pairs) if pairs else 0.0
