"""Memory that is given again: only when nobody refers to it, and never more than was allowed."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from headrace.ingest.array_pool import ArrayPool


def address(array) -> int:
    return array.__array_interface__["data"][0]


HOLDERS = {
    "array": lambda array: array,
    "view": lambda array: array[3:5],
    "view of a view": lambda array: array[2:].view(np.int8)[1:],
    "tensor": torch.from_numpy,
    "part of a tensor": lambda array: torch.from_numpy(array).view(-1, 2)[1],
    "array of a tensor": lambda array: torch.from_numpy(array).numpy(),
    "memoryview": memoryview,
    "array over its buffer": lambda array: np.frombuffer(array, np.int64),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_block_is_given_again_once_the_last_reference_to_it_is_gone(hold):
    pool = ArrayPool()
    first = pool.take(1 << 17)
    held, at = hold(first), address(first)
    del first
    assert address(pool.take(1 << 17)) != at
    del held
    gc.collect()
    assert address(pool.take(1 << 17)) == at


def test_arrays_of_one_block_do_not_overlap_and_begin_on_lines_of_their_own():
    arrays = ArrayPool().take_arrays([(np.int64, 3), (np.uint8, 1), (np.float32, 0), (np.int32, 20)])
    assert [(a.dtype.name, len(a)) for a in arrays] == [("int64", 3), ("uint8", 1), ("float32", 0), ("int32", 20)]
    assert [address(a) - address(arrays[0]) for a in arrays] == [0, 64, 128, 128]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [set(a.tolist()) for a in arrays] == [{0}, {1}, set(), {3}]


def test_no_more_blocks_are_kept_than_were_allowed():
    pool = ArrayPool(max_blocks=2)
    held = [pool.take(1 << 16) for _ in range(5)]
    assert pool.nbytes == 2 * ((1 << 16) + (1 << 13))
    assert len({address(a) for a in held}) == 5
    assert ArrayPool(max_blocks=0).take(10).nbytes == 10


def test_blocks_give_way_to_those_of_another_size():
    pool = ArrayPool(max_blocks=1)
    for num_bytes in (1 << 20, 1 << 24, 1 << 17):
        at = address(pool.take(num_bytes))
        assert address(pool.take(num_bytes)) == at
        assert pool.nbytes == num_bytes + num_bytes // 8


def test_threads_never_get_the_same_block():
    pool, wrong = ArrayPool(max_blocks=3), []

    def work(mark: int) -> None:
        for _ in range(2000):
            array = pool.take(1024)
            array[:] = mark
            copy = array[::7].copy()
            if (array != mark).any() or (copy != mark).any():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_without_a_lock_nothing_is_given_twice(monkeypatch):
    monkeypatch.setattr("headrace.ingest.array_pool._EXACT", False)
    pool = ArrayPool()
    for taken in range(1, 4):
        pool.take(1 << 17)
        assert pool.nbytes == taken * ((1 << 17) + (1 << 14))
