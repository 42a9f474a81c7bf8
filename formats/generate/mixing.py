"""Keyed 32-bit mixing: the counter-based randomness of everything that is a function of an id, not of a row.

All functions take and give uint32 arrays and have no state; multiplication wraps modulo 2^32, as the dtype defines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]

# Multipliers and shifts of the "lowbias32" mixer (C. Wellons, "Prospecting for hash functions", 2018).
_M1 = np.uint32(0x7FEB352D)
_M2 = np.uint32(0x846CA68B)
_S16, _S15 = np.uint32(16), np.uint32(15)


def keys(seed: int, stage: int, column: int, count: int) -> U32:
    """`count` independent 32-bit keys of one column and one use (`stage`) under a seed."""
    return np.random.SeedSequence([seed, stage, column]).generate_state(count, np.uint32).astype(np.uint32)


def mix32(values: U32, key: np.uint32) -> U32:
    """A bijection of 32 bits chosen by `key`; each output bit depends on every input bit. Shape kept; a new array."""
    x = values ^ key
    x ^= x >> _S16
    x *= _M1
    x ^= x >> _S15
    x *= _M2
    x ^= x >> _S16
    return x


@dataclass(frozen=True)
class Permutation:
    """A keyed bijection of the integers 0 .. 2^bits - 1, 1 <= bits <= 32.

    Four rounds of x -> (x xor key) · odd, then x xor (x >> bits/2), all modulo 2^bits: every step can be undone, so no
    two inputs collide; nothing is stored but the keys.
    """

    keys: tuple[int, ...]
    bits: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 32:
            raise ValueError(f"bits={self.bits} is not from 1 to 32")
        if len(self.keys) != 4:
            raise ValueError(f"a permutation has 4 keys, got {len(self.keys)}")

    def __call__(self, values: U32) -> U32:
        """Images of `values` (any shape, each < 2^bits); a new array."""
        mask = np.uint32((1 << self.bits) - 1)
        shift = np.uint32(max(1, self.bits // 2))
        x: U32 = values & mask
        for position, key in enumerate(self.keys):
            x ^= np.uint32(key) & mask
            x *= _M2 if position % 2 else _M1
            x &= mask
            x ^= x >> shift
        return x
