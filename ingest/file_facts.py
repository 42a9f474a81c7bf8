"""What ranks that read the same files compare of them, and a state and the reader that it is loaded for."""

from __future__ import annotations

import os
from typing import Any

from headrace.formats.reader import RowReader
from headrace.indexer.exchange.agreement import Detail

_MOST_FILES = 100_000
"""So many of a list are told to the other ranks when the lists differ."""


def files_facts(reader: RowReader[Any, Any]) -> dict[str, object]:
    """A fact for :func:`agree`: which files, of what sizes, in which order, and which of their rows."""
    listed = listed_files(reader, most=_MOST_FILES)
    return {"files": Detail([len(reader.files), listed, reader.digest], _between_ranks)}


def listed_files(reader: RowReader[Any, Any], *, most: int) -> list[list[Any]]:
    """``[name without its folder, bytes or None]`` of each of the first `most` files."""
    names = [os.path.basename(str(name)) for name in reader.files[:most]]
    sizes = getattr(reader, "sizes", None) or [None] * len(names)
    return [[name, size] for name, size in zip(names, sizes, strict=False)]


def _between_ranks(one: list[Any], other: list[Any], names: tuple[str, str]) -> str:
    return first_difference(one, other, (f"on {names[0]}", f"on {names[1]}"))


def first_difference(one: list[Any], other: list[Any], where: tuple[str, str]) -> str:
    """Where two lists ``[how many, [[name, bytes], ...], digest]`` of files begin to differ; `where` says of each, as
    "on rank 0", where it is."""
    (count, files, _), (other_count, other_files, _) = one, other
    many = "" if count == other_count else f"{count} files {where[0]}, {other_count} {where[1]}; "
    for number, (mine, theirs) in enumerate(zip(files, other_files, strict=False), start=1):
        if mine != theirs:
            return f"{many}the first that differs is number {number}: {_words(mine, theirs, where)}"
    shorter, longer = sorted((files, other_files), key=len)
    if len(shorter) == len(longer):
        every = count == other_count == len(files)
        return many + ("other rows of the same files" if every else f"behind the first {len(files)}")
    return f"{many}the first that is missing is number {len(shorter) + 1}, {longer[len(shorter)][0]}"


def _words(mine: list[Any], theirs: list[Any], where: tuple[str, str]) -> str:
    if mine[0] == theirs[0]:
        return f"{mine[0]} of {mine[1]} bytes {where[0]}, of {theirs[1]} {where[1]}"
    return f"{mine[0]} {where[0]}, {theirs[0]} {where[1]}"
