"""Files that a command writes when it is done: refused at once, not after an hour of work, where they cannot be, or
where the command reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import click

from headrace.formats.target_path import check_file_target

_READ = "headrace.inputs"
"""In the context's `meta`: by path, links followed, the option or argument that names it."""

_WRITTEN = "headrace.outputs"
"""The same of the files that are written."""


def writable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Callback of an option that names a file to be written, as it is: a pipe or a device will do."""
    return _checked(ctx, param, path, whole=False)


def replaceable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Callback of an option that names a file that appears whole or not at all."""
    return _checked(ctx, param, path, whole=True)


def writable_folder(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Callback of an option that names a folder, to be made where it is not there, to write files into."""
    if path is None:
        return None
    _refuse_empty(ctx, param, path, "folder")
    there = os.path.abspath(path)
    try:
        while _stat(there) is None:
            there = os.path.dirname(there)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path!r} cannot be written to: {in_words(error)}", ctx, param) from None
    if not os.path.isdir(there):
        raise click.BadParameter(f"{path!r} is not a folder", ctx, param)
    if not os.access(there, os.W_OK):
        raise click.BadParameter(f"{path!r} cannot be written to: permission denied", ctx, param)
    return path


def _checked(ctx: click.Context, param: click.Parameter, path: str | None, *, whole: bool) -> str | None:
    if path is None:
        return None
    _refuse_empty(ctx, param, path, "file")
    try:
        problem = _problem(path, whole=whole)
    except (OSError, ValueError) as error:  # of a name that is too long, a circle of links, a zero byte
        problem = f"{path!r} cannot be written: {in_words(error)}"
    if problem:
        raise click.BadParameter(problem, ctx, param)
    found = _stat(path)
    if found is None or stat.S_ISREG(found.st_mode):  # two may share a device
        written: dict[str, str] = ctx.meta.setdefault(_WRITTEN, {})
        other = written.setdefault(os.path.realpath(path), param.opts[0])
        if other != param.opts[0]:
            raise click.BadParameter(f"{path!r} is the file of {other} too; name another", ctx, param)
        _refuse_overwriting(ctx)
    return path


def note_read(ctx: click.Context, param: click.Parameter, paths: Iterable[str]) -> None:
    """The command reads these files, so that none of them may be one that it writes: a usage error where one is."""
    note_read_as(ctx, param.human_readable_name if isinstance(param, click.Argument) else param.opts[0], paths)


def note_read_as(ctx: click.Context, name: str, paths: Iterable[str]) -> None:
    """The same, where `name` says what they are read as."""
    read: dict[str, str] = ctx.meta.setdefault(_READ, {})
    for path in paths:
        read.setdefault(os.path.realpath(path), name)
    _refuse_overwriting(ctx)


def _refuse_overwriting(ctx: click.Context) -> None:
    """Options come in any order: whichever comes last finds what is both read and written."""
    read: dict[str, str] = ctx.meta.get(_READ, {})
    written: dict[str, str] = ctx.meta.get(_WRITTEN, {})
    for path in written:
        if path in read:
            message = f"{path!r} is read ({read[path]}), and would be overwritten; name another"
            raise click.BadParameter(message, ctx, param_hint=repr(written[path]))


def _refuse_empty(ctx: click.Context, param: click.Parameter, path: str, what: str) -> None:
    if path == "":
        raise click.BadParameter(f"the path is empty; name a {what}", ctx, param)


def _problem(path: str, *, whole: bool) -> str | None:
    """Why `path` cannot be written, or None. OSError, ValueError for what is no path."""
    found = _stat(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        return f"{path!r} is a folder"
    if whole:
        check_file_target(Path(path))
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if not os.path.isdir(folder):
        leads = f"{path!r} leads to {real!r}, and " if os.path.islink(path) else ""
        return f"{leads}there is no folder {folder!r}"
    target = path if found is not None and not whole else folder
    if not os.access(target, os.W_OK):
        return f"{path!r} cannot be written: permission denied"
    return None


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def in_words(error: Exception) -> str:
    """What the system said, without its number and the path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
