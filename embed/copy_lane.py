"""A lane for copies between host and device beside the trainer's own work: a stream and its events, or nothing.

A *mark* is a point in the work that the trainer, or the lane, has asked for. Work on the lane runs in the order in
which it was asked for, each piece after the mark of the trainer that it names; the trainer's work runs beside it,
except where it *holds* for a mark of the lane. So a row's way is: update (trainer) -> device-to-host copy (lane) ->
host-to-device copy (lane) -> gather (trainer), and no host thread waits for any of it but the one that needs the
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.embed.arrays import Array

Mark = Any
"""A point in the order of work; None: nothing to wait for."""


class CopyLane(Protocol):
    """Methods may be called by any thread, `issue` by one at a time."""

    def mark(self) -> Mark:
        """The point that the calling thread's work has come to."""

    def issue(self, work: Callable[[], None], after: Mark) -> Mark:
        """Call `work`, which asks for copies and kernels; they run on the lane after `after`. The point behind them."""

    def last(self) -> Mark:
        """The point behind all that was issued."""

    def hold(self, mark: Mark) -> None:
        """What the calling thread asks for next runs after `mark`."""

    def finish(self, mark: Mark) -> None:
        """Wait on the host until `mark` is reached."""

    def host_rows(self, count: int, width: int) -> Tensor:
        """A float32 tensor [count, width] in host memory that copies can run beside the host with."""

    def upload(self, array: Array) -> Tensor:
        """The array on the device, for what the calling thread asks for next (inside `issue`: for the lane's work)."""

    def shares(self, tensor: Tensor) -> None:
        """The lane works on a tensor of the trainer, whose memory must not be given away before that is done."""


class HostLane:
    """No lane: work is done when it is asked for."""

    def mark(self) -> Mark:
        return None

    def issue(self, work: Callable[[], None], after: Mark) -> Mark:
        work()
        return None

    def last(self) -> Mark:
        return None

    def hold(self, mark: Mark) -> None:
        """It is reached."""

    def finish(self, mark: Mark) -> None:
        """It is reached."""

    def host_rows(self, count: int, width: int) -> Tensor:
        return torch.empty((count, width), dtype=torch.float32)

    def upload(self, array: Array) -> Tensor:
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    def shares(self, tensor: Tensor) -> None:
        """Its work is done."""


class CudaLane:
    """A CUDA stream of its own; marks are events. The trainer's work is on its thread's current stream.

    Host memory is page-locked, from torch's own cache of it: the cache gives a block out again only when the copies
    that used it have run. Device memory that is taken in `work` belongs to the lane's stream, and is used there alone.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> Mark:
        return self._recorded(torch.cuda.current_stream(self._device))

    def issue(self, work: Callable[[], None], after: Mark) -> Mark:
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            work()
        return self.last()

    def last(self) -> Mark:
        return self._recorded(self._stream)

    def hold(self, mark: Mark) -> None:
        if mark is not None:
            torch.cuda.current_stream(self._device).wait_event(mark)

    def finish(self, mark: Mark) -> None:
        if mark is not None:
            mark.synchronize()

    def host_rows(self, count: int, width: int) -> Tensor:
        return torch.empty((count, width), dtype=torch.float32, pin_memory=True)

    def upload(self, array: Array) -> Tensor:
        pinned = torch.from_numpy(np.ascontiguousarray(array) if array.flags.writeable else array.copy()).pin_memory()
        return pinned.to(self._device, non_blocking=True)

    def shares(self, tensor: Tensor) -> None:
        tensor.record_stream(self._stream)

    @staticmethod
    def _recorded(stream: torch.cuda.Stream) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        return event


def lane_of(device: torch.device) -> CopyLane:
    """The lane of a device."""
    return CudaLane(device) if device.type == "cuda" else HostLane()
