"""Memory of earlier batches, given again once nobody refers to it: fresh memory costs a page fault every 4 KiB."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_LINE_BYTES = 64
_MUCH_LARGER = 4


class ArrayPool:
    """Blocks of bytes, at most `max_blocks` of them, in use or not; what exceeds that is ordinary memory. Thread-safe.

    A block is free when the pool alone refers to it: its arrays, their views and the tensors over them each keep it
    from being given again, so that who holds a part of a batch holds it unchanged. (That takes reference counts which
    are exact under the interpreter's lock; without one nothing is given twice.)
    """

    def __init__(self, max_blocks: int = 6) -> None:
        self._max_blocks = max_blocks
        self._blocks: list[Bytes] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, in use or not."""
        with self._lock:
            return sum(block.nbytes for block in self._blocks)

    def take(self, num_bytes: int) -> Bytes:
        """uint8 [num_bytes], not cleared, the caller's own until the last reference to it is gone."""
        with self._lock:
            for place in range(len(self._blocks)):
                if _fits(self._blocks[place], num_bytes) and _is_free(self._blocks, place):
                    return self._blocks[place][:num_bytes]
            block = np.empty(num_bytes + num_bytes // 8, np.uint8)
            self._keep(block)
            return block[:num_bytes]

    def take_arrays(self, sizes: Sequence[tuple[type[np.generic], int]]) -> list[npt.NDArray[Any]]:
        """Arrays of these types and lengths in one block, each on cache lines of its own."""
        begins = [0]
        for dtype, size in sizes:
            begins.append(begins[-1] + -(-size * np.dtype(dtype).itemsize // _LINE_BYTES) * _LINE_BYTES)
        block = self.take(begins[-1])
        return [np.frombuffer(block, dtype, size, begin) for (dtype, size), begin in zip(sizes, begins, strict=False)]

    def _keep(self, block: Bytes) -> None:
        """Take a new block in, in the place of one that is free: what is asked for has grown, or shrunk by much."""
        if len(self._blocks) < self._max_blocks:
            self._blocks.append(block)
            return
        for place in range(len(self._blocks)):
            if _is_free(self._blocks, place):
                self._blocks[place] = block
                return


def _fits(block: Bytes, num_bytes: int) -> bool:
    return num_bytes <= block.nbytes <= max(num_bytes * _MUCH_LARGER, 1 << 16)


def _is_free(blocks: list[Bytes], place: int) -> bool:
    return _EXACT and sys.getrefcount(blocks[place]) == _ALONE


_EXACT = getattr(sys, "_is_gil_enabled", lambda: True)()
_PROBE = [np.empty(1, np.uint8)]
_ALONE = sys.getrefcount(_PROBE[0])  # what an array has to which only a list refers, asked in the same way
