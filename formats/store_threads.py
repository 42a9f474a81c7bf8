"""Threads inside a store's library, which may never give a request back: given up in time, and no bar to the exit."""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from pyarrow import fs

EXIT_TIMEOUT_S = 5.0
"""How long the end of the program waits for requests that are under way, all of them together."""

_T = TypeVar("_T")


class Stoppable(Protocol):
    """Whose threads end when it is told so, unless they are inside a request."""

    def stop(self) -> None: ...


_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_OWNERS: weakref.WeakSet[Any] = weakref.WeakSet()


def start_thread(
    target: Callable[..., None], *args: Any, name: str, owner: Stoppable | None = None
) -> threading.Thread:
    """A running daemon thread; `owner` is stopped when the program ends."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    _THREADS.add(thread)
    if owner is not None:
        _OWNERS.add(owner)
    thread.start()
    return thread


def ask_bounded(ask: Callable[[], _T], timeout_s: float) -> _T:
    """``ask()`` in a thread of its own; TimeoutError when it does not answer in time (the thread is given up)."""
    answer: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(ask())
        except BaseException as error:
            errors.append(error)

    start_thread(run, name="headrace-store").join(timeout_s)
    if errors:
        raise errors[0]
    if not answer:
        raise TimeoutError(f"no answer for {timeout_s:.3g} s")
    return answer[0]


@atexit.register  # behind Arrow's own, which was registered when pyarrow.fs was imported, and thus runs after this
def _end() -> None:
    """Arrow waits for all requests to S3 when the program ends, without bound; not for those that do not come back."""
    for owner in list(_OWNERS):
        owner.stop()
    end_s = time.monotonic() + EXIT_TIMEOUT_S
    threads = list(_THREADS)
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    if any(thread.is_alive() for thread in threads) and hasattr(fs, "ensure_s3_finalized"):
        atexit.unregister(fs.ensure_s3_finalized)
        _leave_out_destructors()


def _leave_out_destructors() -> None:
    """Those of C++ objects, at the very end: they are still in use by the threads, which would crash."""
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):  # of glibc: called first, with the exit status
        library.on_exit(library._exit, None)
