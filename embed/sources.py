"""Where the vectors of a batch's unique rows are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headrace.embed._threads import Threads
from headrace.embed.arrays import F32


class VectorSource(Protocol):
    """`count` row vectors of `dim` floats, found at each use."""

    @property
    def count(self) -> int: ...
    @property
    def dim(self) -> int: ...
    def read(self, out: F32, threads: Threads | None = None) -> None:
        """Copy the vectors to `out` float32 [count, dim]."""


@dataclass(frozen=True, eq=False)
class TensorSource:
    """vectors[slots[i]]: `vectors` float32 [n, dim] and `slots` int64 [count] on one device."""

    vectors: Tensor
    slots: Tensor

    @property
    def count(self) -> int:
        return self.slots.numel()

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def read(self, out: F32, threads: Threads | None = None) -> None:
        """Waits for the device."""
        torch.from_numpy(out).copy_(self.vectors.index_select(0, self.slots))
