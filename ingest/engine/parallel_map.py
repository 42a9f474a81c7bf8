"""A function over items, by threads, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from headrace.ingest.engine.buffered import BufferedMap
from headrace.ingest.engine.checks import check_int

S = TypeVar("S")
T = TypeVar("T")


class ParallelMap(BufferedMap[T]):
    """``fn(item)`` for each item of `source`, in the source's order.

    `num_workers` threads call `fn` side by side (it pays where `fn` releases the GIL), with at most
    ``num_workers * prefetch_factor`` items pulled and not yet delivered; 0 calls it inline. An error of `fn` is raised
    where its item would have come; a StopIteration out of `fn` is an error (RuntimeError), never the end.
    `timeout_s`: waiting longer than this for the threads' next item raises TimeoutError (inline work cannot be timed).
    """

    def __init__(
        self,
        source: Iterable[S],
        fn: Callable[[S], T],
        *,
        num_workers: int,
        prefetch_factor: int = 2,
        timeout_s: float | None = None,
    ) -> None:
        workers = check_int("ParallelMap", "num_workers", num_workers, minimum=0)
        factor = check_int("ParallelMap", "prefetch_factor", prefetch_factor, minimum=1)
        super().__init__(source, fn, num_workers=workers, capacity=workers * factor, timeout_s=timeout_s)
