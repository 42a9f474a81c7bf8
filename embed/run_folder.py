"""A folder that appears whole or not at all, and whose files are proved by checksums on reading."""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from headrace.embed.abandoned import META, clear_abandoned, put_aside, remove_folder, temporary_folder
from headrace.formats.manifest import file_blake2b, new_hasher
from headrace.formats.target_path import follow_links

_READS = 5  # of a folder that is replaced again and again while it is read
_T = TypeVar("_T")


class CheckpointError(ValueError):
    """A checkpoint that is damaged, incomplete, of another version, or of another model; the message tells which."""


def write_folder(path: Path, meta: dict[str, Any], write_files: Callable[[Path], None]) -> None:
    """Write files by ``write_files(folder)`` and `meta` beside them, then give the folder its name, in one step.

    A folder of an earlier checkpoint at `path` is replaced: it is there until the new one is whole. Anything else at
    `path` raises FileExistsError. A symbolic link stays one: what it leads to is written or replaced, and a circle of
    links is an OSError before anything is written. What killed writers left beside `path` is removed.
    """
    path = follow_links(path)
    if path.exists() and not (path / META).is_file():
        raise FileExistsError(f"{path} exists and is not a checkpoint; give another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_abandoned(path)
    folder = temporary_folder(path)
    folder.mkdir()
    try:
        write_files(folder)
        files = {file.name: file_blake2b(file) for file in sorted(folder.iterdir())}
        content = {**meta, "files": files}
        text = json.dumps({**content, "checksum": _content_digest(content)}, indent=1)
        (folder / META).write_text(text, encoding="utf-8")
        for file in (*folder.iterdir(), folder):
            _sync(file)
        _put(folder, path)
        _sync(path.parent)
    finally:
        remove_folder(folder)


def read_folder(path: Path, read: Callable[[Path, dict[str, Any]], _T]) -> _T:
    """``read(folder, meta)`` of one checkpoint, whole, also while another process replaces it by a newer one.

    `read` is called again if `path` was replaced meanwhile. `folder` is `path` with links followed, or, where a writer
    was killed between the two renames of a file system that cannot swap names, the former checkpoint put aside.
    """
    path = follow_links(path)
    for attempt in range(1, _READS + 1):
        folder = path if path.exists() else put_aside(path) or path
        before = fingerprint(folder)
        try:
            result = read(folder, read_meta(folder))
        except (OSError, ValueError):
            # Without a description it may be between two names: that is believed at the last attempt only.
            if fingerprint(folder) == before and (before or attempt == _READS):
                raise
        else:
            if fingerprint(folder) == before:
                return result
    raise CheckpointError(f"{path} was replaced {_READS} times while it was read; read it again when it is left alone")


def fingerprint(folder: Path) -> str:
    """What tells a checkpoint from one that took its name: a digest of its description; empty if there is none."""
    try:
        return file_blake2b(folder / META)
    except OSError:
        return ""


def read_meta(path: Path) -> dict[str, Any]:
    """`meta` of a folder, after all checksums have been verified; CheckpointError names the file that is wrong."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a checkpoint folder (over ranks each restores its own, so by as many ranks as saved)"
        )
    if not (path / META).exists():
        raise CheckpointError(f"{path} is not a checkpoint folder: it has no {META}")
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / META}: not a checkpoint's description: {error!r}") from error
    if not isinstance(meta, dict) or "checksum" not in meta or not isinstance(meta.get("files"), dict):
        raise CheckpointError(f"{path / META}: not a checkpoint's description: no mapping with files and checksum")
    if meta.pop("checksum") != _content_digest(meta):
        raise CheckpointError(f"{path / META}: checksum differs, the file is damaged")
    for name, digest in meta["files"].items():
        file = path / name
        if Path(name).name != name or not file.is_file():
            raise CheckpointError(f"{file}: file of the checkpoint is missing")
        if file_blake2b(file) != digest:
            raise CheckpointError(f"{file}: checksum differs, the file is damaged")
    return meta


def _put(folder: Path, path: Path) -> None:
    """Give `folder` the name `path`; afterwards `folder` names the former one, if there was any."""
    if not path.exists():
        os.rename(folder, path)
    elif not _exchange(folder, path):  # a file system that cannot swap names: the old one is put aside first
        aside = folder.with_suffix(".old")
        os.rename(path, aside)
        try:
            os.rename(folder, path)
        except OSError:
            os.rename(aside, path)
            raise
        remove_folder(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically (Linux renameat2); False where that is not supported."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    at_cwd, exchange = -100, 2
    if renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), ctypes.c_uint(exchange)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content_digest(content: dict[str, Any]) -> str:
    hasher = new_hasher()
    hasher.update(json.dumps(content, sort_keys=True).encode())
    return hasher.hexdigest()
