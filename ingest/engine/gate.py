"""One thread in a node at a time, and the name of the one that is inside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


class Gate:
    """A lock that knows its owner, and is open again whatever a signal handler raises, and wherever.

    It tells a node that is called from inside itself (a user's function, a signal handler) from one that is called by a
    second thread. Who owns the lock is known to the lock alone, which notes it in the same native call that takes it:
    Python calls signal handlers behind any call, so that what is noted a line later may never be.
    """

    __slots__ = ("_doing", "_lock", "_owner")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: int | None = None  # the last one, for messages
        self._doing = ""

    @property
    def mine(self) -> bool:
        """The calling thread is inside."""
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        return owned

    def run(self, doing: str, timeout_s: float, inside: Callable[[], R], busy: Callable[[], R]) -> R:
        """``inside()`` as soon as nobody else is inside; ``busy()`` if that takes longer than `timeout_s`."""
        release = self._lock.release
        try:
            if not self._lock.acquire(timeout=max(0.0, timeout_s)):
                return busy()
            self._owner, self._doing = threading.get_ident(), doing
            return inside()
        finally:  # no call of ours comes before the release: Python looks for signals where functions begin
            try:  # noqa: SIM105 (a call, too)
                release()
            except RuntimeError:
                pass  # it was not taken: the time was over, or a handler raised while this thread waited

    def holder(self) -> str:
        """Who is inside, for messages."""
        owner = self._owner
        names = [t.name for t in threading.enumerate() if t.ident == owner]
        return f"thread {names[0]!r} is in {self._doing}()" if names else "nobody is inside"
