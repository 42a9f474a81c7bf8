"""Outputs that are written past the cache hold the same bits, whatever the dim and the number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.embed import _pool
from headrace.embed._threads import Threads
from headrace.embed.buffers import BufferPool
from headrace.embed.pooling import matrix_source

F = 3


@pytest.mark.parametrize("dim", [16, 32, 48, 64, 128, 144, 20])  # 20 is not of whole cache lines
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("ids_a_bag", [1, 2])
def test_large_outputs(dim: int, num_threads: int, ids_a_bag: int) -> None:
    b = (1 << 21) // (F * dim * 4) + 77  # above the bytes from which outputs stream; no whole number of tiles
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((500, dim), np.float32)
    ids = rng.integers(0, 500, F * b * ids_a_bag)
    offsets = np.arange(0, len(ids) + 1, ids_a_bag)
    columns = np.array([dim, 2 * dim, 0])
    out = BufferPool().take((b, F * dim)).numpy()
    out[:] = np.nan
    threads = Threads(num_threads)
    _pool.pool_forward(
        matrix_source(rows), ids, offsets, None, columns, np.zeros(F, np.uint8), out, threads, one_hot=ids_a_bag == 1
    )
    bags = rows[ids].reshape(F, b, ids_a_bag, dim)
    expected = bags[:, :, 0] if ids_a_bag == 1 else bags[:, :, 0] + bags[:, :, 1]
    for f, column in enumerate(columns):
        np.testing.assert_array_equal(out[:, column : column + dim], expected[f])
