"""Calls between ranks that ended half-way: nobody knows what was sent, so that no later call may send after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

_LONGEST = 200
"""Characters of an error that later calls show."""

Method = TypeVar("Method", bound=Callable[..., Any])


class WholeExchange:
    """What exchanges rows with other ranks, call by call.

    KeyboardInterrupt, what else a signal's handler raises, and errors such as MemoryError come between any two messages
    or updates. Sent a second time, or not at all, messages would be taken for those of another step by ranks that go
    on: rows and gradients would be lost, or others', in silence. What is raised where the call stands well says so, see
    :meth:`stands`.
    """

    def __init__(self) -> None:
        self._parted: str | None = None
        self._standing: BaseException | None = None
        self._depth = 0

    def check_whole(self) -> None:
        """RuntimeError once a block, of whichever call, ended half-way."""
        if self._parted is not None:
            raise RuntimeError(
                f"{self._parted}, and the ranks cannot tell any more what was sent: end all of them, and start them "
                "again from the last checkpoint"
            )

    @contextmanager
    def whole(self, what: str) -> Iterator[None]:
        """A block in which messages are sent, or rows changed that belong with them; :meth:`check_whole` comes first.

        Whatever is raised in it has parted it, but for what :meth:`stands` lets pass. Blocks may be nested.
        """
        self.check_whole()
        self._depth += 1
        try:
            yield
        except BaseException as error:
            if error is not self._standing:
                self._parted = f"{what} was interrupted half-way ({_named(error)})"
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._standing = None

    @contextmanager
    def stands(self, *kinds: type[Exception]) -> Iterator[None]:
        """A part of a block whose errors of these `kinds` leave it whole: nothing was sent or changed before them that
        a second call does not know of, or all ranks raise them at the same place."""
        try:
            yield
        except kinds as error:
            self._standing = error
            raise


def _named(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    text = str(error)
    words = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def whole(what: str) -> Callable[[Method], Method]:
    """A method of a :class:`WholeExchange` all of which is such a block."""

    def decorated(method: Method) -> Method:
        @wraps(method)
        def called(self: WholeExchange, *args: Any, **kwargs: Any) -> Any:
            with self.whole(what):
                return method(self, *args, **kwargs)

        return cast("Method", called)

    return decorated
