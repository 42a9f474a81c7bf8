"""One thread in a node at a time, and the name of the one that is inside."""

from __future__ import annotations

import threading


class Gate:
    """A lock that knows its owner.

    Unlike a re-entrant lock it tells a node that is called from inside itself (a user's function, a signal
    handler) from one that is called by a second thread.
    """

    __slots__ = ("_doing", "_lock", "_owner")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._doing = ""

    @property
    def mine(self) -> bool:
        """The calling thread is inside."""
        return self._owner == threading.get_ident()

    def enter(self, doing: str, timeout_s: float) -> bool:
        """Wait for at most `timeout_s` until nobody is inside, and go in; False when the time is over."""
        if not self._lock.acquire(timeout=max(0.0, timeout_s)):
            return False
        self._owner = threading.get_ident()
        self._doing = doing
        return True

    def leave(self) -> None:
        self._owner = None
        self._lock.release()

    def holder(self) -> str:
        """Who is inside, for messages."""
        owner = self._owner
        names = [t.name for t in threading.enumerate() if t.ident == owner]
        return f"thread {names[0]!r} is in {self._doing}()" if names else "nobody is inside"
