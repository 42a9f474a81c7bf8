"""What a backend offers: lanes, each a stream of messages between all ranks, in order between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

Waiting = Sequence[tuple[int, Any]]
"""(peer, request) of what was sent or received and has not been waited for."""


class Lane(Protocol):
    """Messages of one stream. Sizes are known on both sides; what is sent or received stays where it is meanwhile."""

    def send(self, data: U8, to: int) -> Any:
        """Begin to send; a request for `wait`."""

    def receive(self, buffer: U8, sender: int) -> Any:
        """Begin to receive; a request for `wait`."""

    def wait(self, waiting: Waiting, timeout_s: float) -> list[int]:
        """The peers whose requests are not done by `timeout_s`; none when all are.

        ConnectionError with ``ranks`` for peers that are gone, ExchangeClosedError after `interrupt`.
        """

    def interrupt(self) -> None:
        """End the waits of this rank, those to come as well; from any thread."""


class Transport(Protocol):
    """One backend, made once a process."""

    name: str
    rank: int
    size: int
    max_tag: int
    watched: bool  # whether a thread may send and receive at any time, beside those that work

    def lane(self, tag: int) -> Lane:
        """The stream with a tag of 0 to `max_tag`; each tag once."""

    def end_all(self) -> None:
        """End the processes of all ranks, as far as the backend can."""

    def close(self) -> None:
        """Release what the backend holds."""


class NoTransport:
    """One process: there is nobody to send to."""

    name = "none"
    rank = 0
    size = 1
    max_tag = (1 << 31) - 1
    watched = False

    def lane(self, tag: int) -> Lane:
        return _NoLane()

    def end_all(self) -> None:
        """There are no others."""

    def close(self) -> None:
        """Nothing is held."""


class _NoLane:
    def send(self, data: U8, to: int) -> Any:
        raise ValueError(f"there is no rank {to}: this is the only process")

    def receive(self, buffer: U8, sender: int) -> Any:
        raise ValueError(f"there is no rank {sender}: this is the only process")

    def wait(self, waiting: Waiting, timeout_s: float) -> list[int]:
        return []

    def interrupt(self) -> None:
        """Nobody waits."""
