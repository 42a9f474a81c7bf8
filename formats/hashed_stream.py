"""Bytes on their way into a file, counted and hashed."""

from __future__ import annotations

from headrace.formats.atomic_file import AtomicFile
from headrace.formats.manifest import new_hasher


class HashedStream:
    """What Arrow or tar write to: passes bytes on and hashes them."""

    def __init__(self, file: AtomicFile) -> None:
        self._file = file
        self.hasher = new_hasher()
        self.bytes = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self.hasher.update(data)
        self.bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """The file is flushed when it is finished."""

    def close(self) -> None:
        self.closed = True
