"""A channel is one thread's at a time: the messages of two, in another order on each rank, would be mixed up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SoleUse:
    """Who uses a channel. A thread may begin again what it uses already; what a thread that has ended used is free."""

    def __init__(self, rank: int, purpose: str) -> None:
        self._rank, self._purpose = rank, purpose
        self._lock = threading.RLock()  # of what follows; garbage that is collected within may end a use
        self._thread = threading.current_thread()
        self._what = ""
        self._uses = 0

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Within it the channel is this thread's."""
        self.begin(what)
        try:
            yield
        finally:
            self.end()

    def begin(self, what: str) -> None:
        """RuntimeError while another thread uses the channel; else it is this one's until as many calls of `end`."""
        mine = threading.current_thread()
        with self._lock:
            theirs = self._thread
            if theirs is not mine and self._uses and theirs.is_alive():
                raise RuntimeError(
                    f"one loop at a time per communicator: on rank {self._rank} thread {mine.name!r} comes to {what} "
                    f"while thread {theirs.name!r} is at {self._what} (channel {self._purpose!r}); nothing of it was "
                    "sent. Run loops one after the other, or connect() once for each, in one order on all ranks"
                )
            if theirs is not mine or not self._uses:
                self._thread, self._what, self._uses = mine, what, 0
            self._uses += 1

    def end(self) -> None:
        """From any thread: what one has begun to send may be waited for by another."""
        with self._lock:
            self._uses = max(0, self._uses - 1)
