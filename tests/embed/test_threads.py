"""Threads of the kernels: bounds, and what becomes of them in a forked child."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from headrace.embed._rows import SlotRows
from headrace.embed._threads import Threads


def gather(threads):
    source = np.arange(40_000, dtype=np.float32).reshape(-1, 4)
    slots = np.arange(len(source))[::-1].copy()
    out = np.empty_like(source)
    SlotRows.gather(source, slots, out, threads)
    return bool((out == source[::-1]).all())


@pytest.mark.parametrize("number", [0, -1, 257])
def test_numbers_out_of_range_are_refused(number):
    with pytest.raises(ValueError, match=f"num_threads={number}"):
        Threads(number)


def test_they_can_be_used_again_and_again():
    threads = Threads(3)
    assert threads.num_threads == 3
    assert all(gather(threads) for _ in range(50))


def test_a_forked_child_works_alone_and_ends():
    threads = Threads(3)
    assert gather(threads)
    child = os.fork()
    if child == 0:
        right = gather(threads)
        del threads  # its threads are not here to be joined
        os._exit(0 if right else 1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")
