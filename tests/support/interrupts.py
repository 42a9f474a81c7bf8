"""A signal at any instruction: its handler is called where Python itself next looks for signals."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_signal_came: Any = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.py_object, ctypes.py_object)(
    ("PyErr_SetInterrupt", ctypes.pythonapi)
)
"""As a trace function, native: SIGINT is noted before the next instruction, and no code of ours runs after it."""


class InterruptAt:
    """SIGINT at instruction number `at` of those run in files of which one of `watched` is part of the path.

    A trace function that raised by itself would do so where no handler is ever called, as between the end of a block
    under a lock and the lock's release. `left` is above 0 if there were not so many instructions; `place` is where the
    handler raised `error`, "" where it was called only behind the watched code, and raised nothing.
    """

    def __init__(self, at: int, watched: tuple[str, ...], error: type[BaseException] = KeyboardInterrupt) -> None:
        self.left = at
        self.place = ""
        self._watched, self._error = watched, error

    def _is_watched(self, frame: FrameType | None) -> bool:
        return frame is not None and any(part in frame.f_code.co_filename for part in self._watched)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "call":
            if self.left <= 0 or not self._is_watched(frame):
                return None
            frame.f_trace_opcodes = True
        elif event == "opcode":
            self.left -= 1
            if self.left == 0:
                caller: FrameType | None = frame
                while caller is not None and caller.f_trace is not None:
                    caller.f_trace = _signal_came
                    caller = caller.f_back
                return _signal_came
        return self._trace

    def _handle(self, number: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # noted several times, it comes once
        caller = frame
        while caller is not None and not self._is_watched(caller):
            if caller.f_code is InterruptAt.during.__code__:
                return
            caller = caller.f_back
        if frame is not None:
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
        raise self._error

    def during(self, use: Callable[[], Any]) -> Any:
        """``(use(), None)``, or (None, the error) if it came out of `use`."""
        before = signal.signal(signal.SIGINT, self._handle)
        found, raised = None, None
        try:
            sys.settrace(self._trace)
            try:
                found = use()
            finally:
                sys.settrace(None)
        except self._error as error:
            raised = error
        finally:
            signal.signal(signal.SIGINT, before)
        return found, raised
