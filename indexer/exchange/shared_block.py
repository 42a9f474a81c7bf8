"""A block of memory that two processes of a host share. It has no name in any file system: it ends with its users.

One of them writes messages into it, one at a time, the other reads them. The block is a memfd: not limited by the size
of ``/dev/shm``, and never left behind, also after SIGKILL. The reader opens it through ``/proc/<pid>/fd``, which the
kernel allows to processes of the same user that see each other.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from dataclasses import dataclass

import numpy as np

from headrace.indexer.exchange._shared_words import put_word, read_word
from headrace.indexer.exchange.transport import U8

try:  # Linux
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
except (ImportError, AttributeError):
    _SEALS = 0

_HEADER_BYTES = 128
_PUBLISHED, _TAKEN = 0, 8  # words of the header, a cache line each

CAPACITY_LIMIT = 1 << 36


class SharedMemoryError(OSError):
    """Memory could not be shared; the message says why."""


@dataclass(frozen=True)
class Handle:
    """How another process finds a block: `name` is drawn at random, so that it is no other one's by chance."""

    pid: int
    descriptor: int
    name: str
    capacity: int


class SharedBlock:
    """`data` uint8 [capacity], and the numbers of the last message that was published, and taken, which begin with 0.

    `publish` by the writer, `take` by the reader. Made by :meth:`create`, or by :meth:`open` of its handle; the memory
    goes with the last array of it.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._words = np.frombuffer(memory, np.int64, _HEADER_BYTES // 8)
        self.data: U8 = np.frombuffer(memory, np.uint8, offset=_HEADER_BYTES)
        self.handle: Handle | None = None

    @staticmethod
    def create(name: str, capacity: int) -> SharedBlock:
        """A block of this process, with a handle. SharedMemoryError where there is no such memory, or not enough."""
        if sys.platform != "linux" or not _SEALS or not hasattr(os, "memfd_create"):
            raise SharedMemoryError(f"this system ({sys.platform}) has no memfd_create with seals")
        size = _HEADER_BYTES + capacity
        try:
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.fchmod(descriptor, 0o600)
                os.posix_fallocate(descriptor, 0, size)  # too little memory is an error here, not a signal later
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
                block = SharedBlock(mmap.mmap(descriptor, size))
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise SharedMemoryError(f"{capacity} bytes of shared memory cannot be had: {error}") from error
        weakref.finalize(block, os.close, descriptor).atexit = False  # until this process has ended it may be opened
        block.handle = Handle(os.getpid(), descriptor, name, capacity)
        return block

    @staticmethod
    def open(handle: Handle) -> SharedBlock:
        """Another process's block. SharedMemoryError where it is not seen from here, or is not what the handle says."""
        if not 0 <= handle.capacity <= CAPACITY_LIMIT:
            raise SharedMemoryError(f"a block of {handle.capacity} bytes; one has at most {CAPACITY_LIMIT}")
        path, size = f"/proc/{handle.pid}/fd/{handle.descriptor}", _HEADER_BYTES + handle.capacity
        try:
            found = os.readlink(path)
            if found != f"/memfd:{handle.name} (deleted)":  # another process: on another host, or in another container
                raise SharedMemoryError(f"{path} is {found}, not {handle.name}")
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                has, seals = os.fstat(descriptor).st_size, fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
                if has != size or seals & _SEALS != _SEALS:
                    raise SharedMemoryError(
                        f"{handle.name} has {has} bytes and seals {seals}, expected {size}, {_SEALS}"
                    )
                return SharedBlock(mmap.mmap(descriptor, size))
            finally:
                os.close(descriptor)
        except SharedMemoryError:
            raise
        except OSError as error:
            raise SharedMemoryError(f"{handle.name} of process {handle.pid} cannot be opened: {error}") from error

    @property
    def capacity(self) -> int:
        return len(self.data)

    @property
    def published(self) -> int:
        """What was written before it was published is seen after this."""
        return read_word(self._words, _PUBLISHED)

    @property
    def taken(self) -> int:
        """The writer may write anew what was taken."""
        return read_word(self._words, _TAKEN)

    def publish(self, message: int) -> None:
        put_word(self._words, _PUBLISHED, message)

    def take(self, message: int) -> None:
        put_word(self._words, _TAKEN, message)
