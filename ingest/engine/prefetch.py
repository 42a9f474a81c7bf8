"""Work ahead of the consumer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from headrace.ingest.engine.buffered import BufferedMap
from headrace.ingest.engine.checks import check_int

T = TypeVar("T")


class Prefetch(BufferedMap[T]):
    """Items of `source`, made by one thread, at most `prefetch_factor` of them ahead of the consumer; same order.

    `timeout_s`: waiting longer than this for an item raises TimeoutError.
    """

    def __init__(self, source: Iterable[T], *, prefetch_factor: int = 2, timeout_s: float | None = None) -> None:
        capacity = check_int("Prefetch", "prefetch_factor", prefetch_factor, minimum=1)
        super().__init__(source, _same, num_workers=1, capacity=capacity, timeout_s=timeout_s)

    def ready(self, timeout_s: float) -> bool:
        """Wait for at most `timeout_s` until `next()` would not wait (for an item, the end or an error); False when it
        still would. For the one who takes the items; it does not count as taking one.
        """
        run = self._run
        return run is None or run.ready(timeout_s)


def _same(item: T) -> T:
    return item
