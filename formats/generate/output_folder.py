"""Files that appear whole or not at all, and the manifest that says what a folder holds.

States of a folder: empty -> files under temporary names (``.NAME.partial``) -> all files under their names -> manifest.
A folder with a manifest is complete; one that was interrupted has none, and only temporary names but for a moment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from headrace.formats.errors import ManifestError
from headrace.formats.files import MANIFEST_NAME
from headrace.formats.manifest import Manifest, ManifestFile, new_hasher, read_manifest

_PARTIAL = ".partial"


class FileSet:
    """Writes files one after the other; they get their names together when `commit` is called, else vanish on exit.

    `empty` is the content of a file to which nothing is appended.
    """

    def __init__(self, folder: Path, names: Sequence[str], *, empty: bytes = b"") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._names = tuple(names)
        self._empty = empty
        self._stream: IO[bytes] | None = None
        self._digest = new_hasher()
        self._rows = self._bytes = 0
        self._done: dict[str, ManifestFile] = {}

    def __enter__(self) -> FileSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        for name in self._names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._partial(name))

    def append(self, number: int, rows: int, data: bytes) -> None:
        """Append `data` (`rows` rows) to file `number`; numbers never go down, those left out become empty files."""
        if number < len(self._done):
            raise ValueError(f"file {number} is already complete")
        while len(self._done) < number:
            self._finish_current()
        stream = self._stream or self._open_current()
        stream.write(data)
        self._digest.update(data)
        self._rows += rows
        self._bytes += len(data)

    def commit(self) -> dict[str, ManifestFile]:
        """Complete all files, flush them to disk and name them; returns the manifest's ``files``."""
        while len(self._done) < len(self._names):
            self._finish_current()
        for name in self._names:
            os.replace(self._partial(name), self._folder / name)
        return self._done

    def _partial(self, name: str) -> Path:
        return self._folder / f".{name}{_PARTIAL}"

    def _open_current(self) -> IO[bytes]:
        self._stream = open(self._partial(self._names[len(self._done)]), "wb")  # noqa: SIM115  (closed by _finish_current)
        return self._stream

    def _finish_current(self) -> None:
        if self._stream is None and self._empty:
            self.append(len(self._done), 0, self._empty)
        stream = self._stream or self._open_current()
        stream.flush()
        os.fsync(stream.fileno())
        stream.close()
        name = self._names[len(self._done)]
        self._done[name] = ManifestFile(bytes=self._bytes, rows=self._rows, blake2b=self._digest.hexdigest())
        self._stream = None
        self._digest = new_hasher()
        self._rows = self._bytes = 0


def manifest_of(folder: Path) -> Manifest | None:
    """The manifest of a folder; None when there is none, or it is not one that can be trusted."""
    try:
        return read_manifest(folder)
    except (ManifestError, NotADirectoryError):
        return None


def holds_exactly(folder: Path, parameters: Mapping[str, Any], *, subfolders: Sequence[str] = ()) -> bool:
    """Whether the folder has a manifest of equal parameters and its files, of the recorded sizes, and nothing else."""
    manifest = manifest_of(folder)
    if manifest is None or manifest.parameters != dict(parameters):
        return False
    if set(os.listdir(folder)) != {MANIFEST_NAME, *manifest.files, *subfolders}:
        return False
    return all((folder / name).stat().st_size == entry.bytes for name, entry in manifest.files.items())


def refuse_unless_empty(folder: Path) -> None:
    """FileExistsError when the folder holds anything."""
    found = sorted(os.listdir(folder)) if folder.exists() else []
    if found:
        unfinished = ", left by an interrupted run" if found[0].endswith(_PARTIAL) else ""
        raise FileExistsError(
            f"{folder}: is not empty and is not the result of a run with equal parameters "
            f"(it holds {found[0]!r}{unfinished}); give another folder, "
            "or overwrite=True to replace what an earlier run wrote"
        )


def clear(folder: Path, *, remove: bool = False) -> None:
    """Remove what an earlier run wrote: the manifest first, the files it lists, temporary files; nothing else.

    With `remove` the folder goes too if that leaves it empty.
    """
    if not folder.exists():
        return
    manifest = manifest_of(folder)
    names = [MANIFEST_NAME, *(manifest.files if manifest else ())]
    names += [n for n in os.listdir(folder) if n.startswith(".") and n.endswith(_PARTIAL)]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)
    if remove and not os.listdir(folder):
        folder.rmdir()
