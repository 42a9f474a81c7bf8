"""Errors of nodes: they keep their type, gain context, and can be raised again."""

from __future__ import annotations

import copy


class NodeClosedError(RuntimeError):
    """The node was closed, or was closed or reset by another thread while this one waited in it."""


class NodeInterruptedError(RuntimeError):
    """A call before was interrupted half-way by a signal handler (Ctrl-C); the message says how to go on."""


def add_context(error: BaseException, text: str) -> None:
    """Append `text` to ``error.headrace_context`` (list of str, innermost first) and, from Python 3.11, to its notes.

    The type, the arguments and the traceback stay as they are. An error that takes no attributes is left alone.
    """
    context = getattr(error, "headrace_context", None)
    if not isinstance(context, list):
        context = []
        try:
            error.headrace_context = context  # type: ignore[attr-defined]
        except AttributeError:
            return
    context.append(text)
    add_note = getattr(error, "add_note", None)  # not in Python 3.10
    if add_note is not None:
        add_note(text)


def context_of(error: BaseException) -> list[str]:
    """What nodes said about `error`, innermost first."""
    context = getattr(error, "headrace_context", None)
    return context if isinstance(context, list) else []


def twin_of(error: BaseException) -> BaseException:
    """An error of the same type with the same arguments and attributes, but without traceback and cause.

    A node that has to raise its error again keeps a twin: the traceback of the error itself holds the node's frames, so
    that keeping it would make a reference cycle and a dropped pipeline would not stop.
    """
    twin: BaseException | None
    try:
        twin = copy.copy(error)  # right for OSError, UnicodeDecodeError and others that keep more than args
    except Exception:  # a constructor that does not take its own args
        twin = None
    if type(twin) is not type(error) or twin.args != error.args:
        twin = type(error).__new__(type(error))
        twin.args = error.args
        twin.__dict__.update(error.__dict__)
    for name in ("headrace_context", "__notes__"):
        texts = getattr(error, name, None)
        if isinstance(texts, list):
            setattr(twin, name, list(texts))
    return twin.with_traceback(None)
