"""Files that an option names and a command reads: what is wrong with one is told as what is wrong with the option."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from headrace.cli_outputs import in_words

T = TypeVar("T")


def read_by(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """Callback of an option whose value is what `read` makes of the file; a usage error for its OSError, ValueError."""

    def callback(ctx: click.Context, param: click.Parameter, path: str | None) -> T | None:
        if path is None:
            return None
        try:
            return read(path)
        except OSError as error:
            raise _unreadable(ctx, param, path, error) from None
        except ValueError as error:  # names the file
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


def readable(ctx: click.Context, param: click.Parameter, paths: str | tuple[str, ...] | None) -> object:
    """Callback of an option that names files to be read later: refused at once where they cannot be opened."""
    for path in () if paths is None else (paths,) if isinstance(paths, str) else paths:
        try:
            with open(path, "rb"):
                pass
        except (OSError, ValueError) as error:  # ValueError: of a zero byte in a name
            raise _unreadable(ctx, param, path, error) from None
    return paths


def _unreadable(ctx: click.Context, param: click.Parameter, path: str, error: Exception) -> click.BadParameter:
    return click.BadParameter(f"{path!r} cannot be read: {in_words(error)}", ctx, param)
