"""A writer of a growing folder: files appear by rename while somebody reads."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path


def appear(folder: Path, name: str, data: bytes) -> None:
    """Write a file as a live source does: hidden, then renamed."""
    partial = folder / f".{name}.tmp"
    partial.write_bytes(data)
    os.rename(partial, folder / name)


class Writer(threading.Thread):
    """Lets `files` (name, bytes) appear, `pause_s` apart, then the end marker."""

    def __init__(self, folder: Path, files: Sequence[tuple[str, bytes]], *, pause_s: float, end: str = "_END") -> None:
        super().__init__(daemon=True)
        self._folder, self._files, self._end, self._pause_s = folder, files, end, pause_s
        self._halt = threading.Event()

    def run(self) -> None:
        for name, data in self._files:
            if self._halt.wait(self._pause_s):
                return
            appear(self._folder, name, data)
        if not self._halt.wait(self._pause_s):
            appear(self._folder, self._end, b"")

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._halt.set()
        self.join(30)
