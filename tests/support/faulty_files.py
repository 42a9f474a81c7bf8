"""A file system over a folder whose reads fail as a test says, and counts of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow import fs

# (path, first byte, bytes asked for) -> what to do: "" nothing, "error", "short", "empty", "stall"
Fault = Callable[[str, int, int], str]


class FaultyFiles:
    """The part of ``pyarrow.fs.FileSystem`` that a store needs, over the files in `folder`."""

    type_name = "faulty"

    def __init__(self, folder: Path, fault: Fault = lambda path, offset, nbytes: "") -> None:
        self.fault = fault
        self.reads: list[tuple[int, int]] = []
        self.released = threading.Event()  # lets stalled reads go
        self._inner = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())

    def get_file_info(self, what: Any) -> Any:
        return self._inner.get_file_info(what)

    def open_input_file(self, path: str) -> FaultyHandle:
        return FaultyHandle(self, path, self._inner.open_input_file(path))


class FaultyHandle:
    def __init__(self, files: FaultyFiles, path: str, inner: Any) -> None:
        self._files, self._path, self._inner = files, path, inner

    def size(self) -> int:
        return int(self._inner.size())

    def read_at(self, nbytes: int, offset: int) -> bytes:
        self._files.reads.append((offset, nbytes))
        what = self._files.fault(self._path, offset, nbytes)
        if what == "error":
            raise OSError("the connection was reset")
        if what == "stall":
            self._files.released.wait(30)
            raise OSError("stalled")
        if what == "short":
            nbytes = max(1, nbytes // 2)
        return b"" if what == "empty" else bytes(self._inner.read_at(nbytes, offset))

    def close(self) -> None:
        self._inner.close()
