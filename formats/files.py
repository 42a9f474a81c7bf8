"""Lists of files: found, put into natural order, and hashed."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence

from headrace.formats.checks import check_paths
from headrace.formats.quarantine import is_quarantine

MANIFEST_NAME = "manifest.json"

PathLike = str | os.PathLike[str]


def natural_key(path: str) -> tuple[object, ...]:
    """Sort key under which day_2 comes before day_10; digits compare as numbers, in every folder of the path."""
    parts = re.split(r"([0-9]+)", path)
    # re.split alternates text and digits, so that equal positions always compare like with like.
    return (*(int(part) if i % 2 else part for i, part in enumerate(parts)), path)


def list_files(paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    """Absolute paths of the files that `paths` means: a file, a folder, a glob pattern, or a list of these.

    A folder means the files in it (not below it), a pattern what matches it, both in natural order; the order of a
    given list is kept. Folders and patterns leave out hidden files (``.x``, ``_x``), manifests, and quarantine files
    with their ``.jsonl``; naming such a file takes it.

    Nothing found raises :class:`FileNotFoundError`, and so does a symbolic link to nothing; a folder that matches a
    pattern (unless it ends in ``**``), a pipe, a socket or a device raises ValueError.
    """
    check_paths(paths)
    given = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else list(paths)
    found: list[str] = []
    for path in given:
        name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
        if not isinstance(name, str):
            hint = "; rows of another pipeline come in by RowsFrom(source, schema)" if isinstance(name, Mapping) else ""
            raise TypeError(f"a path is a str or a pathlib.Path, got {name!r:.200} ({type(name).__name__}){hint}")
        found += _expand(name)
    if not found:
        raise FileNotFoundError("no files: an empty list was given")
    return tuple(found)


def _expand(path: str) -> list[str]:
    if not path:
        raise FileNotFoundError("no files: the path is empty")
    full = os.path.abspath(path)
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            names = [entry.path for entry in entries]
        return _data_files(names, f"no data files in the folder {full}", folders=True)
    if os.path.lexists(path):  # also a name that happens to hold glob characters
        check_regular(full)
        return [full]
    if not glob.has_magic(path):
        raise FileNotFoundError(f"no such file or folder: {full}")
    matches = glob.glob(path, recursive=True)
    return _data_files(matches, f"no data files match the pattern {full}", folders=os.path.basename(path) == "**")


def _data_files(matches: list[str], nothing: str, *, folders: bool) -> list[str]:
    """Those that hold data; `folders` says whether folders among them are passed by or refused."""
    found = [os.path.abspath(m) for m in matches if not (folders and os.path.isdir(m))]
    kept = sorted((f for f in found if not _left_out(f)), key=natural_key)
    for file in kept:
        check_regular(file)
    if not kept:
        skipped = f" ({len(found)} files there are hidden, manifests or quarantine)" if found else ""
        raise FileNotFoundError(nothing + skipped)
    return kept


def check_regular(path: str) -> None:
    """A link to nothing is a FileNotFoundError, what is no regular file a ValueError."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if os.path.islink(path):
            reason = f"a symbolic link to {os.readlink(path)!r}, which cannot be opened ({error.strerror})"
            raise FileNotFoundError(f"{path}: {reason}") from error
        raise
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path}: a folder matches the pattern; name it by itself, or match files only")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: not a regular file (a pipe, a socket or a device)")


def _left_out(path: str) -> bool:
    return is_hidden(os.path.basename(path)) or is_quarantine(path)


def is_hidden(name: str) -> bool:
    """Whether folders and patterns leave a file of this name out, whatever it holds."""
    return name.startswith((".", "_")) or name == MANIFEST_NAME


def file_sizes(files: Sequence[str]) -> tuple[int, ...]:
    """Bytes of each file as stored."""
    return tuple(map(os.path.getsize, files))


def digest(files: Sequence[str], sizes: Sequence[int]) -> str:
    """Hex digest of the names (without folders) and sizes in order: equal on two ranks iff they list the same data.

    Folders do not count, so that a moved dataset can be resumed and ranks may mount it at different places.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for file, size in zip(files, sizes, strict=True):
        name = os.path.basename(file).encode("utf-8", "surrogateescape")
        hasher.update(len(name).to_bytes(8, "little") + name + size.to_bytes(8, "little"))
    return hasher.hexdigest()
