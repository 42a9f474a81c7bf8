"""Who reads ahead into an index: one writer at a time, since an undo takes back all that is uncommitted."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from headrace.formats.monitor import Monitor

GONE_WITHIN_S = 1.0
"""How long a claim waits for a writer that may just be going: a dropped loader's thread ends in its own time."""


class WriterClaim:
    """The present writer, held weakly: one that is gone holds nothing. Any thread may call."""

    def __init__(self) -> None:
        self._monitor = Monitor()  # the collector may end a loader, which releases, while this thread is in here
        self._writer: weakref.ref[object] | None = None

    def claim(self, owner: object, open_tickets: Callable[[], int]) -> None:
        """Make `owner` the writer. RuntimeError while another one is alive and tickets are open."""
        reference = weakref.ref(owner, self._gone)

        def claimed() -> bool:
            if open_tickets() and self._is_taken(owner):
                return False
            self._writer = reference
            return True

        if not self._monitor.wait_for(claimed, GONE_WITHIN_S):
            raise RuntimeError(
                "a loader reads ahead into this index: finish its epoch, or close() it, before another loader, "
                "import_rows, or whatever else gives ids rows; what only looks ids up (train=False, insert=False) may "
                "go on meanwhile"
            )

    def release(self, owner: object) -> None:
        """`owner` writes no longer; nothing if it is not the writer."""
        with self._monitor.lock:
            if self._current() is owner:
                self._writer = None
                self._monitor.changed()

    def holds(self, owner: object) -> bool:
        with self._monitor.lock:
            return self._current() is owner

    def _is_taken(self, owner: object) -> bool:
        """Whether another writer is alive; no reference to it outlives the call."""
        return self._current() not in (None, owner)

    def _gone(self, reference: weakref.ref[object]) -> None:
        with self._monitor.lock:
            self._monitor.changed()

    def _current(self) -> object | None:
        return None if self._writer is None else self._writer()
