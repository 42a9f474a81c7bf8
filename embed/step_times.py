"""Where the seconds of training steps go."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Literal

Part = Literal["gather", "forward", "backward", "update", "fetch", "write_back", "wait"]

PARTS: tuple[Part, ...] = ("gather", "forward", "backward", "update", "fetch", "write_back", "wait")
"""In the order of a step; see :meth:`StepTimes.report`."""


class _Counting:
    """A block whose seconds are added to those of a part; a step has ten, and a generator costs three times as much."""

    __slots__ = ("_begin", "_part", "_seconds")

    def __init__(self, seconds: dict[Part, float], part: Part) -> None:
        self._seconds, self._part = seconds, part

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._seconds[self._part] += time.perf_counter() - self._begin


class StepTimes:
    """Seconds of each part since the beginning, and what moved. Each part is measured by one thread at a time.

    Evaluation is not counted. `moves_beside` says whether rows are fetched and written back by a thread of their own.
    """

    def __init__(self, *, moves_beside: bool) -> None:
        self.moves_beside = moves_beside
        self.rows_fetched = 0
        self.rows_written_back = 0
        self.steps = 0
        self._seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._began: float | None = None
        self._ended: float | None = None

    def of(self, part: Part) -> AbstractContextManager[None]:
        """Counts the seconds within it."""
        return _Counting(self._seconds, part)

    def of_training(self, part: Part, trains: bool) -> AbstractContextManager[None]:
        """:meth:`of`, if it is of a training step."""
        return self.of(part) if trains else nullcontext()

    def begin_step(self) -> None:
        """A training batch goes forward."""
        if self._began is None:
            self._began = time.perf_counter()

    def end_step(self) -> None:
        """An optimizer step is done."""
        self.steps += 1
        self._ended = time.perf_counter()

    def report(self) -> dict[str, Any]:
        """Plain data.

        ====================== =====================================================================================
        `steps`                optimizer steps
        `elapsed_s`            from the first training forward to the end of the last step, all else of the loop
                               included
        `step_s`               mean seconds of a step, by part:

                               - `gather`: checks of the batch and finding its rows, bookkeeping of the plan included
                               - `forward`: reading the rows and pooling them (one pass)
                               - `backward`: gradients of the rows
                               - `update`: the optimizer, gradients of several batches added up before
                               - `fetch`: rows read from chunks into slots
                               - `write_back`: rows that leave copied out of slots, and into chunks
                               - `wait`: the trainer waits for rows that another thread fetches or writes back
        `moves_beside`         whether `fetch` and `write_back` run beside the trainer; else they are part of its time
        `trainer_wait_share`   share of `elapsed_s` in which the trainer could not go on because rows were moved:
                               `wait`, and without a thread of their own `fetch` and `write_back`; None before a step
        `rows_fetched`,        in all
        `rows_written_back`
        ====================== =====================================================================================

        On an accelerator these are seconds of the host, which asks for work and does not wait for it.
        """
        steps, elapsed = self.steps, self._elapsed()
        waited = self._seconds["wait"]
        if not self.moves_beside:
            waited += self._seconds["fetch"] + self._seconds["write_back"]
        return {
            "steps": steps,
            "elapsed_s": elapsed,
            "step_s": {part: self._seconds[part] / steps if steps else None for part in PARTS},
            "moves_beside": self.moves_beside,
            "trainer_wait_share": min(1.0, waited / elapsed) if elapsed else None,
            "rows_fetched": self.rows_fetched,
            "rows_written_back": self.rows_written_back,
        }

    def _elapsed(self) -> float:
        return 0.0 if self._began is None or self._ended is None else self._ended - self._began
