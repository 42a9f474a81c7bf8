"""Which id holds a popularity rank on which day.

The rule. Time is cut into days of `drift_rows` rows. On each day a share `drift` of a column's ids changes its rank, by
swaps in pairs; the popularity law and the set of ids stay what they are. With C ids, seed and column fixed:

- *round* j (j = 1, 2, ...) has a key k_j in 0 .. C-1 and pairs every position x with (k_j - x) mod C;
- a pair of round j swaps at the hashed moment h in [0, 1) of that round, h = hash(key_j, smaller of the two) / 2^32;
- `drift` rounds pass a day: on day d the first m = floor(d · drift) rounds are complete, and of round m + 1 the pairs
  with h < d · drift - m have swapped.

So from one day to the next a share `drift` of the ids is re-ranked (all of them with drift = 1); day 0 and drift = 0
leave the ranks as they are. The position of a rank on day d is a function of (seed, column, drift, d) and needs no
table and no pass over earlier days' values, since complete rounds compose to x -> ±x + constant (mod C). Every day's
map is a bijection.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.formats.generate.mixing import mix32
from headrace.formats.generate.popularity import I64


@dataclass(frozen=True)
class Drift:
    """Re-ranking of one column of `cardinality` ids; `key` chooses the pairs and the moments."""

    drift: float
    cardinality: int
    key: int

    def positions(self, ranks: I64, day: int) -> I64:
        """int64 [n] position, in day 0's ranking, of the id that holds each of `ranks` (int64 [n]) on `day` (>= 0)."""
        progress = day * self.drift
        rounds = int(progress)
        if progress == 0.0:
            return ranks
        sign, offset = self._complete(rounds)
        x = (sign * ranks + offset) % self.cardinality
        return self._partial(x, rounds + 1, progress - rounds)

    def _pair_keys(self, first: int, last: int) -> I64:
        """int64 keys k_j of the rounds first .. last."""
        rounds = np.arange(first, last + 1, dtype=np.int64).astype(np.uint32)
        return mix32(rounds, np.uint32(self.key)).astype(np.int64) % self.cardinality

    def _complete(self, rounds: int) -> tuple[int, int]:
        """(sign, offset) of rounds 1 .. `rounds` one after the other: k_m - (k_(m-1) - (... x))."""
        number = np.arange(1, rounds + 1, dtype=np.int64)
        signs = 1 - 2 * ((rounds - number) % 2)  # the last round +1, the one before -1, ...
        offset = int((signs * self._pair_keys(1, rounds)).sum()) % self.cardinality
        return (-1 if rounds % 2 else 1), offset

    def _partial(self, x: I64, number: int, share: float) -> I64:
        if share == 0.0:
            return x
        partner = (int(self._pair_keys(number, number)[0]) - x) % self.cardinality
        moment_key = mix32(np.array([number], np.uint32), np.uint32(self.key ^ 0x9E3779B9))[0]
        moment = mix32(np.minimum(x, partner).astype(np.uint32), moment_key)
        return np.where(moment < np.uint32(min(share * 2.0**32, 2.0**32 - 1)), partner, x)
