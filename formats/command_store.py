"""Files that a command writes to a pipe, run by webdataset: only where the user allows that kind of URL by name."""

from __future__ import annotations

import contextlib
import io
import os
import select
import subprocess
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import IO, Any

from webdataset.gopen import gopen, gopen_schemes

from headrace.formats.errors import ReadInterruptedError
from headrace.formats.files import PathLike
from headrace.formats.manifest import Manifest
from headrace.formats.range_file import Access

_STALL_TIMEOUT_S = 600.0
_END_TIMEOUT_S = 10.0


class _CommandFile(io.RawIOBase):
    """What a command writes; one that fails, or writes nothing for `_STALL_TIMEOUT_S`, is an OSError."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self._pipe: Any = gopen(url, "rb")
        self._pipe.ignore_errors = True  # it is this class that looks at how the command ended
        self._process: subprocess.Popen[bytes] = self._pipe.proc
        self._stream: IO[bytes] = self._pipe.stream
        self._woken, self._wake = os.pipe()
        self._closing = threading.Lock()

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        ready = select.poll()  # select() knows no descriptors over 1023
        for descriptor in (self._stream.fileno(), self._woken):
            ready.register(descriptor, select.POLLIN)
        found = [descriptor for descriptor, _ in ready.poll(_STALL_TIMEOUT_S * 1000)]
        if not found:
            raise TimeoutError(f"{self.url}: the command wrote nothing for {_STALL_TIMEOUT_S} s")
        if self._woken in found:
            raise ReadInterruptedError(f"{self.url}: closed while it was read")
        read = os.readv(self._stream.fileno(), [view])
        if not read and (status := self._process.wait(_END_TIMEOUT_S)):
            raise OSError(f"{self.url}: the command ended with status {status}")
        return read

    def interrupt(self) -> None:
        """Wake whoever waits, from any thread."""
        with self._closing:  # a descriptor that was closed may be another file's by now
            if not self.closed:
                os.write(self._wake, b"x")

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._process.kill()  # what is not read to its end need not end by itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_TIMEOUT_S)
            with self._closing:
                super().close()
                os.close(self._woken)
                os.close(self._wake)


class CommandStore:
    """URLs of the schemes in `allowed`, each of which webdataset opens by a command; sizes are not known (0)."""

    def __init__(self, allowed: Sequence[str]) -> None:
        known = sorted(set(gopen_schemes) - {"__default__"})
        if isinstance(allowed, str) or (unknown := sorted(set(allowed) - set(known))):
            named = allowed if isinstance(allowed, str) else unknown
            raise ValueError(f"allow_commands={named!r}: a sequence of names among {', '.join(known)}")
        self._allowed = tuple(allowed)
        self._open: weakref.WeakSet[_CommandFile] = weakref.WeakSet()
        self._opening = threading.Lock()

    @classmethod
    def of(cls, paths: PathLike | Iterable[PathLike], allowed: Sequence[str]) -> CommandStore | None:
        """The store of `paths` when the first of them is an allowed URL; None when it is no such URL."""
        store = cls(allowed)
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        return store if given and store._allows(given[0]) else None

    def _allows(self, path: object) -> bool:
        return isinstance(path, str) and path.partition(":")[0] in self._allowed and ":" in path

    def find(self, paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        for path in given:
            if not self._allows(path):
                raise ValueError(f"{path!r} is no URL that allow_commands={self._allowed!r} allows")
        return tuple(map(str, given))

    def is_folder(self, path: str) -> bool:
        return False

    def names(self, folder: str) -> dict[str, str]:
        raise NotADirectoryError(folder)

    def sizes(self, files: Sequence[str]) -> tuple[int, ...]:
        return (0,) * len(files)

    def size(self, file: str) -> int:
        return 0

    def open(self, file: str, access: Access = "forward") -> io.RawIOBase:
        opened = _CommandFile(file)
        with self._opening:
            self._open.add(opened)
        return opened

    def folder_of(self, file: str) -> str:
        return ""

    def manifest(self, folder: str) -> Manifest | None:
        return None

    def blake2b(self, file: str) -> str:
        raise ValueError(f"{file}: no hash of what a command writes")

    def identity(self, file: str) -> dict[str, Any]:
        return {"name": file, "bytes": 0, "modified_ns": 0}

    def counts(self) -> None:
        return None

    def interrupt(self) -> None:
        with self._opening:
            opened = list(self._open)
        for file in opened:
            file.interrupt()
