"""Where a file or folder that appears at once is written: links followed, and a hidden name beside it meanwhile."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

_BESIDE_THE_STEM = 56
"""Bytes of a hidden name that are not its stem: two dots, a writer's tag of at most 45, ``.partial``."""


def follow_links(path: Path) -> Path:
    """`path` with links followed; it need not exist. OSError for a circle of links."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return real


def check_file_target(target: Path) -> tuple[Path, os.stat_result | None]:
    """Where `target` leads to, and what stands there if a file does: one may be written there, or in its place.

    IsADirectoryError for a folder; OSError for a pipe, socket or device, which no file can take the place of, a name
    that is too long, or a circle of links. Whether the folder is there and may be written to is for who opens the file.
    """
    found = None
    with suppress(FileNotFoundError):  # itself, or what a link leads to
        found = os.stat(target)
    if found is None:
        return follow_links(target), None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder stands where the file is to be written", str(target))
    if not stat.S_ISREG(found.st_mode):
        what = "a pipe, socket or device stands where the file is to be written, whole or not at all: name a file"
        raise OSError(errno.EINVAL, what, str(target))
    return follow_links(target), found


def hidden_stem(target: Path) -> str:
    """The name of `target`, or, where a hidden name made of it would be too long, its beginning and a digest.

    OSError if `target` itself could not get its name.
    """
    raw = os.fsencode(target.name)
    longest = _name_max(target.parent)
    if len(raw) > longest:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(target))
    most = max(longest - _BESIDE_THE_STEM, 9)
    if len(raw) <= most:
        return target.name
    beginning = raw[: most - 9].decode("utf-8", "ignore")  # no half of a character
    return f"{beginning}~{hashlib.blake2b(raw, digest_size=4).hexdigest()}"


def _name_max(folder: Path) -> int:
    """Bytes of the longest name in `folder`."""
    with suppress(OSError, ValueError, AttributeError):
        return os.pathconf(folder, "PC_NAME_MAX")
    return 255
