"""Calls between ranks that Ctrl-C parted: nobody knows what was sent, so that no later call may send after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


class WholeExchange:
    """What exchanges rows with other ranks, call by call.

    An error (Exception) is raised where the call stands well; KeyboardInterrupt, and what else a signal's handler
    raises, come between any two messages. Sent a second time, or not at all, they would be taken for those of another
    step by ranks that go on: rows and gradients would be lost, or others', in silence.
    """

    def __init__(self) -> None:
        self._parted: str | None = None

    @contextmanager
    def whole(self, what: str) -> Iterator[None]:
        """A block in which messages are sent. RuntimeError once such a block, this or another, was interrupted."""
        if self._parted is not None:
            raise RuntimeError(
                f"{self._parted} was interrupted half-way (Ctrl-C), and the ranks cannot tell any more what was sent: "
                "end all of them, and start them again from the last checkpoint"
            )
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._parted = what
            raise


def whole(what: str) -> Callable[[Method], Method]:
    """A method of a :class:`WholeExchange` all of which is such a block."""

    def decorated(method: Method) -> Method:
        @wraps(method)
        def called(self: WholeExchange, *args: Any, **kwargs: Any) -> Any:
            with self.whole(what):
                return method(self, *args, **kwargs)

        return cast("Method", called)

    return decorated
