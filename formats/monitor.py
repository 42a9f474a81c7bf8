"""A lock, and waiting for what other threads change under it, that Ctrl-C leaves whole.

``threading.Condition`` takes its lock, gives it away and takes it back in Python. KeyboardInterrupt between two such
lines leaves the lock held for ever, or comes out as the RuntimeError of a lock that is not held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
"""Who waits looks at least so often: a change whose thread was interrupted before it told of it is found then."""


class Monitor:
    """``with monitor.lock:`` (re-entrant) around looks at what is shared, ``changed()`` behind each change of it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: list[threading.Lock] = []  # held; to release one wakes its thread

    def changed(self) -> None:
        """Whoever waits looks again. The caller holds the lock."""
        while self._waiting:
            self._waiting.pop().release()

    def wait_for(self, look: Callable[[], T], timeout_s: float | None = None) -> T:
        """The first true value that `look` gives, which is called under the lock, at once and after each change; after
        `timeout_s` whatever it gives then. What it raises comes out. The caller does not hold the lock: RuntimeError
        where it does, and would have to wait."""
        if self.lock._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks
            return self._look_inside(look)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            waiting = threading.Lock()
            waiting.acquire()
            try:
                with self.lock:
                    self._waiting.append(waiting)  # before the look: a finalizer or handler may come right behind it
                    found = look()
                left = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, deadline - time.monotonic())
                if found or left <= 0:
                    return found
                waiting.acquire(timeout=left)
            finally:
                with self.lock:
                    if waiting in self._waiting:
                        self._waiting.remove(waiting)

    def _look_inside(self, look: Callable[[], T]) -> T:
        """As a signal's handler or a finalizer that came while its own thread held the lock: nobody else can change
        anything before it is back, and what it came between may be changed half."""
        found = look()
        if not found:
            raise RuntimeError(
                "called by a signal handler or a finalizer in the middle of a call that it would wait for: let the "
                "handler only note that the signal came, and do the rest between two steps"
            )
        return found
