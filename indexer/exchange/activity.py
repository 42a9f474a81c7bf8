"""What a rank is doing with the others, in words, for those that wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headrace.indexer.exchange.errors import rank_names


class Activity:
    """The waits of this rank's threads, and the last thing that it did with the other ranks. For any thread."""

    def __init__(self) -> None:
        self._last, self._last_at = "to connect", time.monotonic()
        self._given_up: Wait | None = None
        self._waits: dict[int, Wait] = {}  # by thread; each thread writes its own entry

    def did(self, what: str) -> None:
        """`what` is done: "stage.step of step 3"."""
        self._last, self._last_at, self._given_up = what, time.monotonic(), None

    @contextmanager
    def waits(self, what: str, *, ahead: bool) -> Iterator[Wait]:
        """Within it this thread waits for `what` of other ranks; `ahead`: beside the loop that trains, for batches."""
        thread = threading.get_ident()
        self._waits[thread] = wait = Wait(what, ahead)
        try:
            yield wait
        except Exception:
            self._given_up = wait
            raise
        finally:
            self._waits.pop(thread, None)

    @property
    def last(self) -> str:
        return f"the last it did was {self._last}"

    def words(self) -> str:
        """ "waits for the rows of step 3 of rank 0, since 12 s; the last it did was stage.step of step 2"."""
        now = time.monotonic()
        waits = sorted(self._waits.values(), key=lambda wait: wait.since)
        mine = [wait for wait in waits if not wait.ahead] or waits
        if not mine and self._given_up is not None:
            return f"gave up waiting for {self._given_up.words(now)}; {self.last}"
        if not mine:
            return f"is in code of its own; {self.last}, {now - self._last_at:.0f} s ago"
        whose = "its loader waits" if mine[0].ahead else "waits"
        return f"{whose} for {mine[0].words(now)}; {self.last}, {now - self._last_at:.0f} s ago"


class Wait:
    """A wait of one thread; `ranks` are those that have not come, once that is known."""

    def __init__(self, what: str, ahead: bool) -> None:
        self.what, self.ahead, self.since = what, ahead, time.monotonic()
        self.ranks: Sequence[int] = ()

    def words(self, now: float) -> str:
        of = f" of {rank_names(self.ranks)}" if self.ranks else ""
        return f"{self.what}{of}, since {now - self.since:.0f} s"
