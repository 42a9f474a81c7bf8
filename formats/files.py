"""Lists of files: found, put into natural order, and hashed."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

MANIFEST_NAME = "manifest.json"

PathLike = str | os.PathLike[str]


def natural_key(path: str) -> tuple[object, ...]:
    """Sort key under which day_2 comes before day_10; digits compare as numbers, in every folder of the path."""
    parts = re.split(r"([0-9]+)", path)
    # re.split alternates text and digits, so that equal positions always compare like with like.
    return (*(int(part) if i % 2 else part for i, part in enumerate(parts)), path)


def list_files(paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    """Absolute paths of the files that `paths` means: a file, a folder, a glob pattern, or a list of these.

    A folder means the files in it (not below it), a pattern the files that match it, both in natural order; the order
    of a given list is kept. Folders and patterns leave out hidden files (``.x``, ``_x``), manifests, and quarantine
    files with their ``.jsonl``; naming such a file takes it. Nothing found raises :class:`FileNotFoundError`.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: list[str] = []
    for path in given:
        found += _expand(os.fspath(path))
    if not found:
        raise FileNotFoundError("no files: an empty list was given")
    return tuple(found)


def _expand(path: str) -> list[str]:
    if not path:
        raise FileNotFoundError("no files: the path is empty")
    if os.path.isdir(path):
        return _data_files(os.scandir(path), f"no data files in the folder {os.path.abspath(path)}")
    if os.path.exists(path):  # also a name that happens to hold glob characters
        return [os.path.abspath(path)]
    if not glob.has_magic(path):
        raise FileNotFoundError(f"no such file or folder: {os.path.abspath(path)}")
    matches = (Path(match) for match in glob.iglob(path, recursive=True))
    return _data_files(matches, f"no data files match the pattern {os.path.abspath(path)}")


def _data_files(entries: Iterable[os.DirEntry[str] | Path], nothing: str) -> list[str]:
    files = [os.path.abspath(e) for e in entries if e.is_file()]
    kept = sorted((f for f in files if not _left_out(f)), key=natural_key)
    if not kept:
        skipped = f" ({len(files)} files there are hidden, manifests or quarantine)" if files else ""
        raise FileNotFoundError(nothing + skipped)
    return kept


def _left_out(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith((".", "_")) or name == MANIFEST_NAME or _is_quarantine(path)


def _is_quarantine(path: str) -> bool:
    """A quarantine file may have any name; what gives it away is the pair: ``x`` and ``x.jsonl``."""
    return os.path.exists(f"{path}.jsonl") or (path.endswith(".jsonl") and os.path.exists(path[: -len(".jsonl")]))


def digest(files: Sequence[str]) -> str:
    """Hex digest of the names (without folders) and sizes in order: equal on two ranks iff they list the same data.

    Folders do not count, so that a moved dataset can be resumed and ranks may mount it at different places.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for file in files:
        name = os.path.basename(file).encode("utf-8", "surrogateescape")
        hasher.update(len(name).to_bytes(8, "little") + name + os.path.getsize(file).to_bytes(8, "little"))
    return hasher.hexdigest()
