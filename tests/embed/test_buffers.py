"""Memory is used again only when nothing refers to it."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from headrace.embed.buffers import BufferPool

SHAPE = (300, 400)


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_memory_comes_back_when_the_tensor_is_gone():
    pool = BufferPool()
    first = pool.take(SHAPE)
    where = address(first)
    assert address(pool.take(SHAPE)) != where
    del first
    assert address(pool.take(SHAPE)) == where


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t[3:5],
        lambda t: t.detach(),
        lambda t: t.numpy(),
        lambda t: t.numpy()[0],
        lambda t: memoryview(t.numpy()),
        lambda t: (t.requires_grad_() ** 2).sum(),  # autograd saved it
        lambda t: torch.utils.dlpack.to_dlpack(t),
        lambda t: t.untyped_storage(),
    ],
)
def test_anything_that_refers_to_it_keeps_it(hold):
    pool = BufferPool()
    first = pool.take(SHAPE)
    where = address(first)
    held = hold(first)
    del first
    gc.collect()
    assert address(pool.take(SHAPE)) != where
    del held
    gc.collect()
    assert address(pool.take(SHAPE)) == where


def test_sizes_may_differ_a_little():
    pool = BufferPool()
    where = address(pool.take((100_000,)))
    for size in (105_000, 99_000, 70_000):
        tensor = pool.take((size,))
        assert (address(tensor), tensor.shape) == (where, (size,))
        del tensor
    assert address(pool.take((1_000_000,))) != where  # too small
    assert pool.nbytes < 5_000_000


def test_no_more_is_kept_than_was_asked_for():
    pool = BufferPool(most=2)
    for size in range(100_000, 2_000_000, 100_000):
        pool.take((size,))
    assert pool.nbytes <= 2 * 4 * 1.2 * 2_000_000


def test_small_and_empty_tensors_are_plain():
    pool = BufferPool()
    assert pool.take((0, 5)).shape == (0, 5)
    assert pool.take((2, 3)).dtype == torch.float32
    assert pool.nbytes == 0


def test_large_ones_begin_with_a_cache_line():
    pool = BufferPool()
    for _ in range(5):
        tensor = pool.take(SHAPE)
        assert address(tensor) % 64 == 0
        tensor.fill_(1)
        assert np.all(tensor.numpy() == 1)
