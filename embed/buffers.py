"""Large float32 tensors whose memory is used again.

A fresh tensor of tens of megabytes costs more in page faults than the work on it. Memory is handed out again only when
no tensor, view, array or autograd node refers to it: each tensor keeps an array object of its own alive, and its
memory is free when that object is gone.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import torch
from torch import Tensor

from headrace.embed.arrays import F32, Array

_ALIGNMENT = 64
_SMALLEST = 1 << 16  # floats; smaller ones cost no page faults, since the allocator keeps them


class BufferPool:
    """Keeps the memory of the tensors that it gave, for the tensors to come: of `most` of them, the latest.

    Memory is used again for a tensor of at least half its size. One caller at a time.
    """

    def __init__(self, most: int = 6) -> None:
        self._most = most
        self._blocks: list[tuple[F32, weakref.ref[Array]]] = []

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """A float32 tensor of `shape`, not initialised, that nobody else has."""
        size = math.prod(shape)
        if size < _SMALLEST:
            return torch.empty(shape, dtype=torch.float32)
        memory = self._free(size)
        handle = memory[:size].reshape(shape)
        self._blocks.append((memory, weakref.ref(handle)))
        del self._blocks[: -self._most]
        return torch.from_numpy(handle)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that is kept."""
        return sum(memory.nbytes for memory, _ in self._blocks)

    def _free(self, size: int) -> F32:
        for i, (memory, handle) in enumerate(self._blocks):
            if handle() is None and size <= memory.size <= 2 * size:
                del self._blocks[i]
                return memory
        return _aligned(size + size // 8)  # some room, since the next batch's size will differ a little


def _aligned(size: int) -> F32:
    raw = np.empty(4 * size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + 4 * size].view(np.float32)
