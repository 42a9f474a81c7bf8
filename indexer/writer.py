"""Who reads ahead into an index: one writer at a time, since an undo takes back all that is uncommitted."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

GONE_WITHIN_S = 1.0
"""How long a claim waits for a writer that may just be going: a dropped loader's thread ends in its own time."""


class WriterClaim:
    """The present writer, held weakly: one that is gone holds nothing. Any thread may call."""

    def __init__(self) -> None:
        # Re-entrant: the collector may end a loader, which releases, while this thread is in here.
        # Taken by itself: a Condition takes its lock in Python, where Ctrl-C may come before the block has it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._writer: weakref.ref[object] | None = None

    def claim(self, owner: object, open_tickets: Callable[[], int]) -> None:
        """Make `owner` the writer. RuntimeError while another one is alive and tickets are open."""
        reference = weakref.ref(owner, self._gone)
        deadline = time.monotonic() + GONE_WITHIN_S
        with self._lock:
            while open_tickets() and self._is_taken(owner):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RuntimeError(
                        "another loader reads ahead into this index: finish its epoch or close() it first; what only "
                        "looks ids up (train=False, insert=False) may go on meanwhile"
                    )
                self._changed.wait(left)
            self._writer = reference

    def release(self, owner: object) -> None:
        """`owner` writes no longer; nothing if it is not the writer."""
        with self._lock:
            if self._current() is owner:
                self._writer = None
                self._changed.notify_all()

    def holds(self, owner: object) -> bool:
        with self._lock:
            return self._current() is owner

    def _is_taken(self, owner: object) -> bool:
        """Whether another writer is alive; no reference to it outlives the call."""
        return self._current() not in (None, owner)

    def _gone(self, reference: weakref.ref[object]) -> None:
        with self._lock:
            self._changed.notify_all()

    def _current(self) -> object | None:
        return None if self._writer is None else self._writer()
