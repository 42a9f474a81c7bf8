"""Sources that misbehave on purpose, for the conformance kit and for tests of nodes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from headrace.ingest.engine.errors import NodeClosedError
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import State, count_in


class TwoPartError(Exception):
    """An exception whose constructor takes two arguments, which naive copies and wrappers lose."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


class ListSource(Node[Any]):
    """Items of a list; counts its calls and notices a second thread inside."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__()
        self.items = list(items)
        self.calls = 0
        self.most_inside = 0
        self.progress = threading.Condition()
        self._inside = 0
        self._at = 0

    def _next(self) -> Any:
        with self.progress:
            self._inside += 1
            self.calls += 1
            self.most_inside = max(self.most_inside, self._inside)
            self.progress.notify_all()
        try:
            return self._item()
        finally:
            with self.progress:
                self._inside -= 1
                self.progress.notify_all()

    def _item(self) -> Any:
        if self._at >= len(self.items):
            raise StopIteration
        self._at += 1
        return self.items[self._at - 1]

    def _reset(self, state: State | None) -> None:
        with self.progress:
            self.most_inside = max(self.most_inside, self._inside + 1)
        self._at = 0 if state is None else count_in(self.name, state, "at")

    def _state(self) -> State:
        return {"at": self._at}

    def wait_for_calls(self, calls: int, timeout_s: float = 10.0) -> bool:
        """Wait until ``next()`` was called `calls` times."""
        with self.progress:
            return self.progress.wait_for(lambda: self.calls >= calls, timeout_s)


class FaultySource(ListSource):
    """Raises `error` instead of item number `at`, at every attempt, until `healed`."""

    def __init__(self, items: Sequence[Any], at: int, error: BaseException) -> None:
        super().__init__(items)
        self.at = at
        self.error = error
        self.healed = False

    @property
    def name(self) -> str:
        return "ListSource"

    def _item(self) -> Any:
        if self._at == self.at and not self.healed:
            raise self.error
        return super()._item()


class BlockingSource(ListSource):
    """Waits before item number `at` until ``open()``; `wakes` says whether closing and resetting wake it, too."""

    def __init__(self, items: Sequence[Any], at: int = 0, *, wakes: bool = True) -> None:
        super().__init__(items)
        self.at = at
        self.wakes = wakes
        self._open = self._woken = False

    @property
    def name(self) -> str:
        return "ListSource"

    def open(self) -> None:
        """Let everything pass from now on."""
        with self.progress:
            self._open = True
            self.progress.notify_all()

    def _item(self) -> Any:
        if self._at == self.at:
            with self.progress:
                self.progress.wait_for(lambda: self._open or self._woken)
                if self._woken:
                    raise NodeClosedError("the source was closed or reset while it waited")
        return super()._item()

    def _interrupt(self) -> None:
        if self.wakes:
            with self.progress:
                self._woken = True
                self.progress.notify_all()

    def _reset(self, state: State | None) -> None:
        super()._reset(state)
        self._woken = False
