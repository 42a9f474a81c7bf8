"""Hidden folders beside a checkpoint, and what becomes of them when their writer was killed.

``.NAME.HOST-PID-PROCESS-NUMBER.tmp``
    the checkpoint NAME while it is written, or, after the names were swapped, the former one while it is deleted
``.NAME.HOST-PID-PROCESS-NUMBER.old``
    the former checkpoint while the new one takes its name, where names cannot be swapped

HOST-PID-PROCESS-NUMBER is the tag of the writer (:mod:`headrace.formats.writer_tag`); for a long NAME its beginning and
a digest stand. A folder is abandoned if its writer ran on this host and is gone. Those of other hosts are left alone,
whatever their age.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from headrace.formats.target_path import hidden_stem
from headrace.formats.writer_tag import TAG, is_abandoned, writer_tag

META = "meta.json"
"""A checkpoint's description, without which a folder is none."""


def temporary_folder(path: Path) -> Path:
    """A new name beside `path` for the checkpoint `path` while this process writes it."""
    return path.parent / f".{hidden_stem(path)}.{writer_tag()}.tmp"


def put_aside(path: Path) -> Path | None:
    """The newest former checkpoint that was put aside and stands beside `path`, or None."""
    found = [folder for folder, _ in _siblings(path, "old") if _written_ns(folder)]
    return max(found, key=_written_ns, default=None)


def clear_abandoned(path: Path) -> None:
    """Remove what killed writers of `path` left; a checkpoint that lost its name to a kill gets it back first."""
    if not path.exists():
        aside = put_aside(path)
        if aside is not None and dict(_siblings(path, "old"))[aside]:
            with suppress(FileNotFoundError):  # another writer was faster
                os.rename(aside, path)
    for kind in ("tmp", "old"):
        for folder, abandoned in _siblings(path, kind):
            if abandoned and (kind == "tmp" or path.exists()):
                remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Delete a checkpoint, its description first: a reader that misses a file sees that the checkpoint is gone."""
    with suppress(OSError):
        (folder / META).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _siblings(path: Path, kind: str) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it is abandoned) of the hidden folders of checkpoint `path`."""
    pattern = re.compile(rf"\.{re.escape(hidden_stem(path))}\.({TAG})\.{kind}")
    with suppress(FileNotFoundError):
        for folder in path.parent.iterdir():
            if match := pattern.fullmatch(folder.name):
                yield folder, is_abandoned(match[1])


def _written_ns(folder: Path) -> int:
    """When the folder's description was written, in ns; 0 if it has none."""
    try:
        return (folder / META).stat().st_mtime_ns
    except OSError:
        return 0
