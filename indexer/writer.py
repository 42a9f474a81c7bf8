"""Who reads ahead into an index: one writer at a time, since an undo takes back all that is uncommitted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable


class WriterClaim:
    """The present writer, held weakly: one that is gone holds nothing. Any thread may call."""

    def __init__(self) -> None:
        # Re-entrant: the collector may end a loader, which releases, while this thread is in here.
        self._lock = threading.RLock()
        self._writer: weakref.ref[object] | None = None

    def claim(self, owner: object, open_tickets: Callable[[], int]) -> None:
        """Make `owner` the writer. RuntimeError while another one is alive and tickets are open."""
        reference = weakref.ref(owner)
        with self._lock:
            tickets = open_tickets()
            writer = self._current()
            if writer is not None and writer is not owner and tickets:
                raise RuntimeError("another loader reads ahead into this index: finish its epoch or close() it first")
            self._writer = reference

    def release(self, owner: object) -> None:
        """`owner` writes no longer; nothing if it is not the writer."""
        with self._lock:
            if self._current() is owner:
                self._writer = None

    def holds(self, owner: object) -> bool:
        with self._lock:
            return self._current() is owner

    def _current(self) -> object | None:
        return None if self._writer is None else self._writer()
