"""Changes of several things that belong together, which Ctrl-C must not part.

Python raises KeyboardInterrupt, or whatever a handler raises, between any two lines of the main thread: most likely
right behind a long native call, where a step has updated the rows and has not yet noted that it did.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)

_Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Handlers in Python of SIGINT, SIGTERM and SIGALRM are called at the end of the block, if the signal came within.

    For blocks that only compute: nothing may be waited for. In other threads, which no handler interrupts, and for
    signals without a handler in Python it does nothing. Blocks may be nested.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[_Handler, int, FrameType | None]] = []
    replaced: list[tuple[signal.Signals, _Handler]] = []
    try:
        for number in _HELD:
            handler = signal.getsignal(number)
            if callable(handler):
                replaced.append((number, handler))
                signal.signal(number, _noting(handler, came))
        yield
    finally:
        _put_back(replaced)
        for handler, which, frame in came:
            handler(which, frame)


def _noting(handler: _Handler, came: list[tuple[_Handler, int, FrameType | None]]) -> _Handler:
    return lambda number, frame: came.append((handler, number, frame))


def _put_back(replaced: list[tuple[signal.Signals, _Handler]]) -> None:
    """All of them, also if a handler that is back already is called meanwhile, and raises."""
    if replaced:
        number, handler = replaced.pop()
        try:
            signal.signal(number, handler)
        finally:
            _put_back(replaced)
