"""How often each id of a column occurs: fitted laws, drawn from without a table of the column's size.

A law numbers the ids of a column by popularity rank and says with which probability a *present* value has each rank:

- ``pmf``: the probabilities themselves;
- ``zm`` (Zipf-Mandelbrot): rank 0 with probability `p_head`, else rank r = 1 .. C-1 with p(r) ~ (r + q)^-a.

The first 65,536 ranks are exact: a cumulative table, searched by bisection. Beyond them the sum over ranks is
replaced by the integral of (x + q)^-a from r - 1/2 to r + 1/2, whose inverse is closed, so C may be 300 million and
the law still takes half a megabyte. Error: by the midpoint rule the integral exceeds the term by a factor 1 +
a(a+1)/(24 (r+q)^2), below 1 + 1e-9 for a <= 4 and r > 65,536; the normaliser has the same error.

Source of the forms: B. Mandelbrot, "An informational theory of the statistical structure of language" (1953).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

EXACT_RANKS = 65_536
MAX_CARDINALITY = 300_000_000


def power_integral(low: F64 | float, high: F64 | float, exponent: float) -> F64:
    """Integral of x^-exponent over [low, high], 0 < low <= high, without cancellation near exponent 1."""
    b = 1.0 - exponent
    log_ratio = np.log(np.asarray(high, np.float64) / low)
    if abs(b) < 1e-12:
        return np.asarray(log_ratio)
    return np.asarray(np.power(low, b) * np.expm1(b * log_ratio) / b)


def power_inverse(share: F64, low: float, high: float, exponent: float) -> F64:
    """The x at which `share` (0 .. 1) of the integral of x^-exponent over [low, high] is reached.

    Near the end of a steep law a step of one unit in the last place of `share` is many ranks; x may then pass `high`.
    """
    b = 1.0 - exponent
    log_ratio = float(np.log(high / low))
    if abs(b) < 1e-12:
        return np.asarray(low * np.exp(share * log_ratio))
    return np.asarray(low * np.exp(np.log1p(share * np.expm1(b * log_ratio)) / b))


@dataclass(frozen=True, eq=False)
class Law:
    """Popularity of one column.

    cdf: float64 [K], cdf[r] = probability of a rank <= r; K <= 65,537 exact ranks.
    cardinality: distinct present ids; ranks are 0 .. cardinality - 1; those >= K form the tail.
    exponent, shift: a and q of the tail (unused when K == cardinality, and then cdf[-1] == 1 exactly).
    p_miss: probability that the value is missing; all other probabilities are given that it is present.
    """

    cdf: F64
    cardinality: int
    exponent: float = 0.0
    shift: float = 0.0
    p_miss: float = 0.0

    @property
    def has_tail(self) -> bool:
        return self.cardinality > len(self.cdf)

    @property
    def tail_mass(self) -> float:
        return float(1.0 - self.cdf[-1])

    @property
    def tail_limits(self) -> tuple[float, float]:
        """Integration limits of the tail, in x + q."""
        return len(self.cdf) - 0.5 + self.shift, self.cardinality - 0.5 + self.shift

    @cached_property
    def exact(self) -> F64:
        """float64 [K]: probability of each exact rank."""
        return np.diff(self.cdf, prepend=0.0)

    def ranks(self, uniforms: F64) -> I64:
        """int64 ranks of `uniforms` (float64 [n] in [0, 1)): the quantile function of the law."""
        ranks = np.searchsorted(self.cdf, uniforms, side="right").astype(np.int64, copy=False)
        if self.has_tail:
            (where,) = np.nonzero(ranks == len(self.cdf))
            share = (uniforms[where] - self.cdf[-1]) / self.tail_mass
            low, high = self.tail_limits
            x = power_inverse(share, low, high, self.exponent) - self.shift
            ranks[where] = np.clip(np.floor(x + 0.5).astype(np.int64), len(self.cdf), self.cardinality - 1)
        return ranks

    def draw(self, generator: np.random.Generator, rows: int) -> I64:
        """int64 [rows] ranks of present values; takes `rows` doubles from the generator."""
        return self.ranks(generator.random(rows))

    def probability(self, first: F64, last: F64) -> F64:
        """Probability of a tail rank in [first, last] (inclusive, whole numbers >= K)."""
        whole = power_integral(*self.tail_limits, self.exponent)
        low, high = np.asarray(first) - 0.5 + self.shift, np.asarray(last) + 0.5 + self.shift
        return self.tail_mass * power_integral(low, high, self.exponent) / whole

    def coverage(self, ranks: int) -> float:
        """Share of the present values that have one of the `ranks` lowest ranks, 0 .. ranks - 1 (0 when ranks <= 0)."""
        if ranks <= 0:
            return 0.0
        if ranks <= len(self.cdf) or not self.has_tail:
            return float(self.cdf[min(ranks, len(self.cdf)) - 1])
        last = min(ranks, self.cardinality) - 1
        return float(self.cdf[-1] + self.probability(np.float64(len(self.cdf)), np.float64(last)))


def pmf_law(probabilities: F64, *, p_miss: float = 0.0, max_cardinality: int | None = None) -> Law:
    """A law from the probabilities of present values, most frequent first; scaled to sum to 1."""
    kept = np.asarray(probabilities, np.float64)[:max_cardinality]
    if kept.ndim != 1 or not len(kept) or not np.isfinite(kept).all() or (kept < 0).any() or not kept.sum() > 0:
        raise ValueError("pmf: needs one or more finite probabilities >= 0 with a positive sum")
    cdf = np.cumsum(kept)
    cdf /= cdf[-1]
    return Law(cdf=cdf, cardinality=len(kept), p_miss=_share("p_miss", p_miss))


def zipf_mandelbrot_law(
    *,
    cardinality: int,
    exponent: float,
    shift: float,
    p_head: float = 0.0,
    p_miss: float = 0.0,
    max_cardinality: int | None = None,
    exact_ranks: int = EXACT_RANKS,
) -> Law:
    """Rank 0 with `p_head`, ranks r = 1 .. cardinality - 1 ~ (r + shift)^-exponent; capped at `max_cardinality` ids.

    A column that is capped at one id has that id in every present value. exact_ranks: ranks in the cumulative table.
    """
    if not 1 <= cardinality <= MAX_CARDINALITY:
        raise ValueError(f"cardinality={cardinality} is not from 1 to {MAX_CARDINALITY}")
    if not 0.0 < exponent <= 4.0:
        raise ValueError(f"exponent={exponent} is not in (0, 4]")
    if not 0.0 <= shift < float("inf"):
        raise ValueError(f"shift={shift} is not a finite number >= 0")
    p_head, p_miss = _share("p_head", p_head), _share("p_miss", p_miss)
    cardinality = min(cardinality, max_cardinality or cardinality)
    if cardinality == 1:
        return Law(cdf=np.ones(1), cardinality=1, p_miss=p_miss)
    exact = min(exact_ranks, cardinality - 1)
    weights = np.power(np.arange(1, exact + 1, dtype=np.float64) + shift, -exponent)  # [exact]
    tail = 0.0
    if cardinality - 1 > exact:
        tail = float(power_integral(exact + 0.5 + shift, cardinality - 0.5 + shift, exponent))
    total = float(weights.sum()) + tail
    cdf = np.empty(exact + 1)
    cdf[0] = p_head
    cdf[1:] = p_head + (1.0 - p_head) * np.cumsum(weights) / total
    if not tail:
        cdf /= cdf[-1]
    return Law(cdf=cdf, cardinality=cardinality, exponent=exponent, shift=shift, p_miss=p_miss)


def _share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value} is not a share from 0 to 1")
    return float(value)
