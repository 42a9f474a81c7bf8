"""Blocks of shared memory: seen by another process, refused where they are not what was said, gone with their users."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest

from headrace.indexer.exchange.shared_block import CAPACITY_LIMIT, Handle, SharedBlock, SharedMemoryError

linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

READER = """
import sys
from headrace.indexer.exchange.shared_block import Handle, SharedBlock
pid, descriptor, name, capacity = sys.argv[1:]
block = SharedBlock.open(Handle(int(pid), int(descriptor), name, int(capacity)))
assert block.published == 7, block.published
print(int(block.data.sum()))
block.data[:] = 2
block.take(7)
"""


@linux
def test_another_process_reads_and_answers():
    before = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    block = SharedBlock.create("headrace-test-1", 1000)
    assert (block.capacity, block.published, block.taken) == (1000, 0, 0)
    assert block.data.ctypes.data % 64 == 0
    block.data[:] = 3
    block.publish(7)
    done = subprocess.run(
        [sys.executable, "-c", READER, *map(str, astuple(block.handle))],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "3000\n", done.stderr
    assert block.taken == 7
    assert (block.data == 2).all()
    if before:
        assert not [name for name in os.listdir("/dev/shm") if "headrace-test" in name]


@linux
def test_memory_is_ours_alone_and_of_one_size():
    block = SharedBlock.create("headrace-test-2", 1000)
    mode = os.fstat(block.handle.descriptor)
    assert stat.S_IMODE(mode.st_mode) == 0o600
    for size in (0, 1 << 20):  # a mapping that is cut short would be a signal for who reads it
        with pytest.raises(PermissionError):
            os.ftruncate(block.handle.descriptor, size)
    assert not os.get_inheritable(block.handle.descriptor)


@linux
def test_a_block_is_gone_with_its_users():
    block = SharedBlock.create("headrace-test-3", 1000)
    handle, other = block.handle, SharedBlock.open(block.handle)
    block.data[:] = 5
    del block
    with pytest.raises(OSError) as caught:
        os.fstat(handle.descriptor)
    assert caught.value.errno == errno.EBADF
    assert (other.data == 5).all()
    with pytest.raises(SharedMemoryError, match="headrace-test-3"):
        SharedBlock.open(handle)


@linux
def test_what_is_not_the_block_is_refused(tmp_path):
    handle = (block := SharedBlock.create("headrace-test-4", 1000)).handle
    with open(tmp_path / "file", "w") as file:
        wrong = {
            "is /memfd:headrace-test-4": replace(handle, name="headrace-test-5"),
            "has 1128 bytes .* expected 1129": replace(handle, capacity=1001),
            "is .*file, not headrace-test-4": replace(handle, descriptor=file.fileno()),
            "cannot be opened: .*No such file": replace(handle, pid=(1 << 31) - 1),
            f"a block of {CAPACITY_LIMIT + 1} bytes": replace(handle, capacity=CAPACITY_LIMIT + 1),
            "a block of -1 bytes": replace(handle, capacity=-1),
        }
        for message, other in wrong.items():
            with pytest.raises(SharedMemoryError, match=message):
                SharedBlock.open(other)
    loose = os.memfd_create("headrace-test-6")  # no seals: it could be cut short
    os.ftruncate(loose, 1128)
    with pytest.raises(SharedMemoryError, match="seals"):
        SharedBlock.open(Handle(os.getpid(), loose, "headrace-test-6", 1000))
    os.close(loose)
    assert block.capacity == 1000


@linux
def test_too_little_memory_is_an_error(monkeypatch):
    descriptors = len(os.listdir("/proc/self/fd"))

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SharedMemoryError, match=r"1000 bytes of shared memory cannot be had: .*No space left"):
        SharedBlock.create("headrace-test-7", 1000)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_system_without_such_memory(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with pytest.raises(SharedMemoryError, match="has no memfd_create"):
        SharedBlock.create("headrace-test-8", 1000)


@linux
def test_arrays_outlive_the_block():
    data = SharedBlock.create("headrace-test-9", 1 << 16).data
    data[:] = 1
    assert int(data.astype(np.int64).sum()) == 1 << 16
