"""Threads that never keep the interpreter from exiting, and end before it is torn down.

A leaked pipeline must not hang the exit, and a thread that is stuck in foreign code cannot be stopped by anybody.
So the engine's threads are daemons, but they are not left to be cut off: an exit handler, which runs when the
program's own threads are done and before the interpreter is torn down, signals all runs and joins their threads, for at
most `EXIT_TIMEOUT_S` together. What is left then is stuck, and only that dies with the process. (Threads that are not
daemons are joined by the interpreter before any public exit handler runs, and without a bound.)
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from headrace.formats.uninterrupted import uninterrupted

EXIT_TIMEOUT_S = 1.0


class Stoppable(Protocol):
    """Something with threads."""

    threads: list[threading.Thread]

    def signal_stop(self) -> None:
        """Ask the threads to end, without waiting; from any thread, at any time."""


_RUNNING: weakref.WeakSet[Any] = weakref.WeakSet()
_RUNNING_LOCK = threading.RLock()


def start_threads(owner: Stoppable, target: Callable[[Any], None], name: str, count: int) -> None:
    """Run ``target(owner)`` in `count` new threads, listed in ``owner.threads``; all or none, also at a Ctrl-C."""
    with _RUNNING_LOCK:
        _RUNNING.add(owner)
    try:
        with uninterrupted():  # a thread that runs and is not listed would not be waited for
            for number in range(count):
                thread = threading.Thread(target=target, args=(owner,), name=f"headrace-{name}-{number}", daemon=True)
                thread.start()
                owner.threads.append(thread)
    except BaseException:  # the system has no more threads
        owner.signal_stop()
        raise


def join_until(threads: list[threading.Thread], deadline: float) -> list[str]:
    """Wait until ``time.monotonic()`` is `deadline` for threads to end; names of those that did not."""
    own = threading.current_thread()
    for thread in threads:
        if thread is not own:
            thread.join(max(0.0, deadline - time.monotonic()))
    return [t.name for t in threads if t is not own and t.is_alive()]


def _stop_all() -> None:
    with _RUNNING_LOCK:
        running = list(_RUNNING)
    for owner in running:
        owner.signal_stop()
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for owner in running:
        join_until(owner.threads, deadline)


atexit.register(_stop_all)
