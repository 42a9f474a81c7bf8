"""What ranks that read the same files compare of them."""

from __future__ import annotations

import os
from typing import Any

from headrace.formats.reader import RowReader
from headrace.indexer.exchange.agreement import Detail

_MOST_FILES = 100_000
"""So many of a list are told to the other ranks when the lists differ."""


def files_facts(reader: RowReader[Any, Any]) -> dict[str, object]:
    """A fact for :func:`agree`: which files, of what sizes, in which order, and which of their rows."""
    names = [os.path.basename(name) for name in reader.files]
    sizes = list(getattr(reader, "sizes", [None] * len(names)))
    listed = [[name, size] for name, size in zip(names, sizes, strict=True)][:_MOST_FILES]
    return {"files": Detail([len(names), listed, reader.digest], first_difference)}


def first_difference(one: list[Any], other: list[Any], names: tuple[str, str]) -> str:
    """Where two lists ``[how many, [[name, bytes], ...], digest]`` of files begin to differ."""
    (count, files, _), (other_count, other_files, _) = one, other
    many = "" if count == other_count else f"{count} files on {names[0]}, {other_count} on {names[1]}; "
    for number, (mine, theirs) in enumerate(zip(files, other_files, strict=False), start=1):
        if mine != theirs:
            return f"{many}the first that differs is number {number}: {_words(mine, theirs, names)}"
    shorter, longer = sorted((files, other_files), key=len)
    if len(shorter) == len(longer):
        return many + ("other rows of the same files" if count == len(files) else f"behind the first {len(files)}")
    return f"{many}the first that is missing is number {len(shorter) + 1}, {longer[len(shorter)][0]}"


def _words(mine: list[Any], theirs: list[Any], names: tuple[str, str]) -> str:
    if mine[0] == theirs[0]:
        return f"{mine[0]} of {mine[1]} bytes on {names[0]}, of {theirs[1]} on {names[1]}"
    return f"{mine[0]} on {names[0]}, {theirs[0]} on {names[1]}"
