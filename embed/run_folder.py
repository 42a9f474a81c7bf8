"""A folder that appears whole or not at all, and whose files are proved by checksums on reading."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

META = "meta.json"


class CheckpointError(ValueError):
    """A checkpoint that is damaged, incomplete, of another version, or of another model; the message tells which."""


def write_folder(path: Path, meta: dict[str, Any], write_files: Callable[[Path], None]) -> None:
    """Write files by ``write_files(folder)`` and `meta` beside them, then give the folder its name, in one step.

    A folder of an earlier checkpoint at `path` is replaced: it is there until the new one is whole. Anything else at
    `path` raises FileExistsError.
    """
    if path.exists() and not (path / META).is_file():
        raise FileExistsError(f"{path} exists and is not a checkpoint; give another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.parent / f".{path.name}.{uuid.uuid4().hex[:12]}.tmp"
    folder.mkdir()
    try:
        write_files(folder)
        files = {file.name: _file_digest(file) for file in sorted(folder.iterdir())}
        content = {**meta, "files": files}
        text = json.dumps({**content, "checksum": _content_digest(content)}, indent=1)
        (folder / META).write_text(text, encoding="utf-8")
        for file in (*folder.iterdir(), folder):
            _sync(file)
        _put(folder, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_meta(path: Path) -> dict[str, Any]:
    """`meta` of a folder, after all checksums have been verified; CheckpointError names the file that is wrong."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a checkpoint folder")
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
        checksum, files = meta.pop("checksum"), meta["files"]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path / META}: not a checkpoint's description: {error!r}") from error
    if checksum != _content_digest(meta):
        raise CheckpointError(f"{path / META}: checksum differs, the file is damaged")
    for name, digest in files.items():
        file = path / name
        if Path(name).name != name or not file.is_file():
            raise CheckpointError(f"{file}: file of the checkpoint is missing")
        if _file_digest(file) != digest:
            raise CheckpointError(f"{file}: checksum differs, the file is damaged")
    return dict(meta)


def _put(folder: Path, path: Path) -> None:
    """Give `folder` the name `path`; afterwards `folder` names the former one, if there was any."""
    if not path.exists():
        os.rename(folder, path)
    elif not _exchange(folder, path):  # a file system that cannot swap names: the old one is put aside first
        aside = folder.with_suffix(".old")
        os.rename(path, aside)
        os.rename(folder, path)
        shutil.rmtree(aside, ignore_errors=True)


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


def _file_digest(path: Path) -> str:
    state = hashlib.blake2b(digest_size=20)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def _content_digest(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=20).hexdigest()
