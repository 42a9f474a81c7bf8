"""NumPy twin of `init_rows.hpp`, bit for bit."""

from __future__ import annotations

import numpy as np

from headrace.embed.arrays import F32, F64, U32, U64, Bool
from headrace.embed.initializer import Initializer

_LOW = np.uint64(0xFFFF_FFFF)


def philox4x32(counter: U64, key: tuple[int, int]) -> U64:
    """Random words uint64 [4, n], each below 2**32, of counters uint64 [4, n]."""
    c0, c1, c2, c3 = (word & _LOW for word in counter)
    k0, k1 = key
    for _ in range(10):
        a = np.uint64(0xD2511F53) * c0
        b = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ np.uint64(k0), b & _LOW, (a >> 32) ^ c3 ^ np.uint64(k1), a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFF_FFFF, (k1 + 0xBB67AE85) & 0xFFFF_FFFF
    return np.stack([c0, c1, c2, c3])


def log_unit(m: U64) -> F64:
    """ln(m / 2**32)."""
    f, exponent = np.frexp(m.astype(np.float64))
    small = f < 0.70710678118654752
    f = np.where(small, f * 2.0, f)
    exponent = np.where(small, exponent - 1, exponent)
    s = (f - 1.0) / (f + 1.0)
    z = s * s
    series = np.full_like(z, 1.0 / 21.0)
    for odd in range(19, 0, -2):
        series = series * z + 1.0 / odd
    result: F64 = (exponent - 32) * 0.69314718055994531 + 2.0 * s * series
    return result


def cos_sin_turn(x: U64) -> tuple[F64, F64]:
    """Cosine and sine of (quadrant + t) * pi / 2; quadrant = x >> 30, t = (x & (2**30 - 1)) / 2**30 - 1/2."""
    a = ((x & np.uint64(0x3FFF_FFFF)).astype(np.float64) * 2.0**-30 - 0.5) * 1.5707963267948966
    z = a * a
    c, s = np.ones_like(a), np.ones_like(a)
    for k in range(16, 1, -2):
        c = 1.0 - c * z / float(k * (k - 1))
    for k in range(17, 2, -2):
        s = 1.0 - s * z / float(k * (k - 1))
    s = s * a
    quadrant = (x >> np.uint64(30)).astype(np.int64)
    return np.choose(quadrant, [c, -s, -c, s]), np.choose(quadrant, [s, c, -s, -c])


def initial_vectors(initializer: Initializer, seed: int, ids: U64, tables: U32, missing: Bool, dim: int) -> F32:
    """float32 [n, dim], the twin of :func:`headrace.embed.initializer.initial_vectors`."""
    kind, first, second = initializer.native()
    if kind == 0:
        return np.full((len(ids), dim), first, np.float32)
    blocks = [_block(kind, first, second, seed, ids, tables, missing, block) for block in range((dim + 3) // 4)]
    return np.concatenate(blocks, axis=1)[:, :dim]


def _block(kind: int, first: float, second: float, seed: int, ids: U64, tables: U32, missing: Bool, block: int) -> F32:
    ids = np.where(missing, np.uint64(0), ids)
    last = np.uint64(block) | (missing.astype(np.uint64) << np.uint64(31))
    counter = np.stack([ids & _LOW, ids >> np.uint64(32), tables.astype(np.uint64), last])
    words = philox4x32(counter, (seed & 0xFFFF_FFFF, seed >> 32))  # [4, n]
    if kind == 1:
        unit = (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
        scaled: F32 = (np.float32(first) + np.float32(second) * unit).T
        return scaled
    values = []
    for x0, x1 in (words[0:2], words[2:4]):
        radius = first * np.sqrt(-2.0 * log_unit(x0 + np.uint64(1)))
        values += [(radius * turn).astype(np.float32) for turn in cos_sin_turn(x1)]
    return np.stack(values, axis=1)
