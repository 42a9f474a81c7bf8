"""Where files are: this machine's folders, or any file system that Arrow knows (`arrow_store.py`)."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from headrace.formats.files import PathLike, check_regular, file_sizes, is_hidden, list_files
from headrace.formats.manifest import Manifest, file_blake2b, read_manifest
from headrace.formats.range_file import Access, RangeFile


class Store(Protocol):
    """A place of files. A file's name is a str that this store alone understands, with ``/`` between its parts."""

    def find(self, paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
        """The files that `paths` means; see :func:`headrace.formats.files.list_files`."""

    def is_folder(self, path: str) -> bool: ...

    def names(self, folder: str) -> dict[str, str]:
        """The files in a folder, hidden ones among them: name in the folder -> name in the store.

        FileNotFoundError for a link to nothing, ValueError for a pipe, a socket or a device.
        """

    def sizes(self, files: Sequence[str]) -> tuple[int, ...]:
        """Bytes of each file, as listed or as they are now."""

    def size(self, file: str) -> int:
        """Bytes of a file as it is now."""

    def open(self, file: str, access: Access = "forward") -> io.RawIOBase: ...

    def folder_of(self, file: str) -> str: ...

    def manifest(self, folder: str) -> Manifest | None:
        """As :func:`headrace.formats.manifest.read_manifest`."""

    def blake2b(self, file: str) -> str:
        """BLAKE2b-256 of a file's bytes, in hex."""

    def identity(self, file: str) -> dict[str, Any]:
        """Name, size and time of change of a file."""

    def counts(self) -> dict[str, int] | None:
        """What was fetched so far (see ``FetchCounts``); None where nothing is fetched."""

    def interrupt(self) -> None:
        """Wake whoever waits for a file of this store, from any thread: ReadInterruptedError there."""


class LocalStore:
    """The folders of this machine."""

    def find(self, paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
        return list_files(paths)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def names(self, folder: str) -> dict[str, str]:
        names = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                path = os.path.abspath(entry.path)
                if entry.is_file():
                    names[entry.name] = path
                elif not (entry.is_dir() or is_hidden(entry.name)) and os.path.lexists(path):
                    check_regular(path)  # what cannot be read is named, never left out
        return names

    def sizes(self, files: Sequence[str]) -> tuple[int, ...]:
        return file_sizes(files)

    def size(self, file: str) -> int:
        return os.path.getsize(file)

    def open(self, file: str, access: Access = "forward") -> io.RawIOBase:
        return open(file, "rb", buffering=0)

    def folder_of(self, file: str) -> str:
        return os.path.dirname(file)

    def manifest(self, folder: str) -> Manifest | None:
        return read_manifest(folder)

    def blake2b(self, file: str) -> str:
        return file_blake2b(file)

    def identity(self, file: str) -> dict[str, Any]:
        stat = os.stat(file)
        return {"name": os.path.basename(file), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}

    def counts(self) -> None:
        return None

    def interrupt(self) -> None:
        """Local files do not wait."""


LOCAL = LocalStore()


def open_size(file: io.RawIOBase) -> int:
    """Bytes of an open file: as it is now for a local one, as it was when it was opened for another."""
    return file.size if isinstance(file, RangeFile) else os.fstat(file.fileno()).st_size


def read_at(file: io.RawIOBase, target: memoryview, offset: int) -> int:
    """Fill a part of `target` with an open file's bytes from `offset` on; their number, 0 at its end."""
    if isinstance(file, RangeFile):
        file.seek(offset)
        return file.readinto(target)
    return os.preadv(file.fileno(), [target], offset)
