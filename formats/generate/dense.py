"""Dense columns: integers with a few frequent small values, a heavy tail and missing values.

A present value is one of the `atoms` (value, probability) or, with the remaining probability, floor(exp(mu + sigma·z))
for a normal z, never below `low` nor above `high`. These are plausible marginals, fitted on small samples; columns are
independent but for missingness, which the columns of a joint group share row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.formats.generate.popularity import F64, I64

_LARGEST_EXPONENT = np.float32(22.0)  # exp of it is above every `high` and far from overflow

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class DenseLaw:
    """Distribution of one dense column; `atoms` in order of value."""

    p_miss: float
    mu: float
    sigma: float
    atoms: tuple[tuple[int, float], ...] = ()
    low: int = 1
    high: int = 2_147_483_647
    _cdf: F64 = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cdf = np.cumsum([probability for _, probability in self.atoms], dtype=np.float64)
        if len(cdf) and (np.diff(cdf, prepend=0.0).min() < 0 or cdf[-1] > 1.0):
            raise ValueError(f"atoms: probabilities are >= 0 and sum to at most 1, got {self.atoms}")
        if not 0.0 <= self.p_miss <= 1.0 or not self.sigma >= 0.0 or not self.low <= self.high < 2**31:
            raise ValueError(f"not a law of a dense column: {self}")
        object.__setattr__(self, "_cdf", cdf)

    def draw(self, generator: np.random.Generator, rows: int) -> I64:
        """int64 [rows] present values; takes `rows` single-precision normals and, with atoms, `rows` doubles."""
        normal = generator.standard_normal(rows, dtype=np.float32)
        exponent = np.minimum(np.float32(self.mu) + np.float32(self.sigma) * normal, _LARGEST_EXPONENT)
        tail = np.exp(exponent)
        values: I64 = np.clip(tail.astype(np.float64), self.low, self.high).astype(np.int64)
        if not self.atoms:
            return values
        which = np.searchsorted(self._cdf, generator.random(rows), side="right")
        table = np.array([value for value, _ in self.atoms] + [0], np.int64)
        return np.where(which < len(self.atoms), table[which], values).astype(np.int64, copy=False)
