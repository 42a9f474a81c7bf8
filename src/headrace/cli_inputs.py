"""Files that an option names and a command reads: what is wrong with one is told as what is wrong with the option, and
none of them is overwritten by the same command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from headrace.cli_outputs import in_words, note_read, note_read_as
from headrace.formats.datasets import open_dataset
from headrace.formats.file_reader import FileReader
from headrace.formats.files import MANIFEST_NAME, list_files

T = TypeVar("T")


def read_by(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """Callback of an option whose value is what `read` makes of the file; a usage error for its OSError, ValueError."""

    def callback(ctx: click.Context, param: click.Parameter, path: str | None) -> T | None:
        if path is None:
            return None
        try:
            note_read(ctx, param, [path])
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
            note_read(ctx, param, [path])
            with open(path, "rb"):
                pass
        except (OSError, ValueError) as error:  # ValueError: of a zero byte in a name
            raise _unreadable(ctx, param, path, error) from None
    return paths


def dataset_paths(ctx: click.Context, param: click.Parameter, paths: str | tuple[str, ...] | None) -> object:
    """Callback of what names a dataset (files, folders, patterns, URIs), as it is: the reader says what is wrong with
    it. Its local files, and the manifests beside them, are known from here on as files that are read."""
    named = () if paths is None else (paths,) if isinstance(paths, str) else paths
    note_read(ctx, param, (file for path in named for file in _local_files(path)))
    return paths


def open_data(dataset: str, paths: Any, **options: Any) -> FileReader[Any]:
    """:func:`open_dataset` for a command, whose reader may read more files than were named: tables that it joins,
    columns in files of their own. None of these is overwritten either."""
    reader = open_dataset(dataset, paths, **options)
    context = click.get_current_context(silent=True)
    if context is not None and reader.growing is None:
        for file in range(len(reader.files)):
            note_read_as(context, f"beside {os.path.basename(reader.files[file])}", reader.files_of(file))
    return reader


def _local_files(path: str) -> Iterable[str]:
    try:
        files = list_files(path)
    except (OSError, ValueError):  # also of a URI
        return ()
    return [*files, *{os.path.join(os.path.dirname(file), MANIFEST_NAME) for file in files}]


def _unreadable(ctx: click.Context, param: click.Parameter, path: str, error: Exception) -> click.BadParameter:
    return click.BadParameter(f"{path!r} cannot be read: {in_words(error)}", ctx, param)
