"""Common ground of the nodes whose items are made ahead of delivery by threads."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from headrace.ingest.engine.checks import check_timeout_s
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.ordered import InlineRun, OrderedRun, Run, RunTimes
from headrace.ingest.engine.state import Snapshot, State
from headrace.ingest.engine.stats import NodeStats

S = TypeVar("S")
T = TypeVar("T")


class BufferedNode(Node[T]):
    """A node with a :class:`Run` under it, made at each reset and started at the first ``next()``.

    Subclasses make the run (`_make_run`) and take results from it (`_take`). The run must not refer to the node:
    the node's end is what stops it.
    """

    def __init__(self, source: Iterable[Any] | None = None, *, timeout_s: float | None = None) -> None:
        super().__init__(source)
        self.timeout_s = check_timeout_s(self.name, "timeout_s", timeout_s)
        self._run: Run[Any] | None = None
        self._times = RunTimes()
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._stuck: list[str] = []

    @abstractmethod
    def _make_run(self) -> Run[Any]:
        """A new run from where the source stands."""

    def _begin_run(self) -> None:
        run = self._make_run()
        self._finalizer = weakref.finalize(self, run.signal_stop)
        self._finalizer.atexit = False
        self._run = run
        self._times = run.times

    def _stop_run(self) -> bool:
        """Stop and join the threads within the time left; False if some stay."""
        run = self._run
        if run is None:
            return True
        run.signal_stop()
        self._stuck = run.join(self._time_left())
        if self._stuck:
            return False
        self._run = None
        if self._finalizer is not None:
            self._finalizer.detach()
        return True

    def _stop_run_for_reset(self) -> None:
        if not self._stop_run():
            raise TimeoutError(f"{self.name}.reset(): still busy after {self.busy_timeout_s:g} s: {self._threads()}")

    def _take(self) -> tuple[Any, Snapshot | None]:
        """Next result, and the source's state after the input that it was made of."""
        assert self._run is not None
        return self._run.take(self.timeout_s)

    def _interrupt(self) -> None:
        run = self._run
        if run is not None:
            run.signal_stop()

    def _close(self) -> None:
        self._stop_run()

    def _left_behind(self) -> list[str]:
        return [f"{self.name} ({self._threads()})"] if self._stuck else []

    def _threads(self) -> str:
        return f"thread {', '.join(map(repr, self._stuck))} does not come back from its source or function"

    def stats(self) -> NodeStats:
        """As for every node; the times are those of the threads."""
        return replace(
            super().stats(),
            busy_s=self._times.apply_s,
            wait_in_s=self._times.pull_s,
            wait_out_s=self._times.blocked_s,
            queue_depth=0 if self._run is None else self._run.depth,
        )


class BufferedMap(BufferedNode[T]):
    """A function over the source's items, by threads, in order; the state is the source's after the delivered item.

    `num_workers` = 0 works inline, in the consumer's thread.
    """

    def __init__(
        self,
        source: Iterable[Any],
        function: Callable[[Any], Any],
        *,
        num_workers: int,
        capacity: int,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(source, timeout_s=timeout_s)
        self._function = function
        self._num_workers = num_workers
        self._capacity = capacity
        self._delivered: Snapshot | None = None

    def _make_run(self) -> Run[Any]:
        return make_run(
            self.name,
            partial(_pull_from, self.source),
            self._function,
            num_workers=self._num_workers,
            capacity=self._capacity,
        )

    def _next(self) -> T:
        result, self._delivered = self._take()
        item: T = result
        return item

    def _reset(self, state: State | None) -> None:
        self._stop_run_for_reset()
        self._reset_source(state)
        self._delivered = self._source_state()
        self._begin_run()

    def _state(self) -> State:
        return {"source": self._delivered}


def make_run(
    name: str,
    pull: Callable[[], tuple[S, Snapshot | None]],
    apply: Callable[[S], T],
    *,
    num_workers: int,
    capacity: int,
) -> Run[T]:
    """A run with `num_workers` threads and at most `capacity` items ahead; inline with 0 threads."""
    if num_workers == 0:
        return InlineRun(pull, apply)
    return OrderedRun(name, pull, apply, num_workers=num_workers, capacity=capacity)


def _pull_from(source: Node[S]) -> tuple[S, Snapshot]:
    return source.next(), source._snapshot()
