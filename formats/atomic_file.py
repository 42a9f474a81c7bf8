"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from types import TracebackType

PARTIAL_SUFFIX = ".partial"


def is_partial(name: str) -> bool:
    """Whether `name` is that of a file that was not published (by a run that was killed, or that still writes)."""
    return name.startswith(".") and name.endswith(PARTIAL_SUFFIX)


class AtomicFile:
    """A new file beside `target`, ``.NAME.xxxxxxxx.partial``, that takes its place when it is published.

    States: open --finish--> on disk --publish--> named; leaving the context in another state removes it.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        self._stream = open(self._partial, "xb")  # noqa: SIM115 (closed by finish or __exit__)
        self._published = False

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def finish(self) -> None:
        """Flush to disk and close."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def publish(self) -> None:
        """Give the finished file its name, in the place of one that has it; :func:`sync_folder` makes that last."""
        os.replace(self._partial, self.target)
        self._published = True

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        if not self._published:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._partial)


def write_atomic(target: Path, data: bytes) -> None:
    """Write `target` in one step: a reader sees the old file or the new one, never a part."""
    with AtomicFile(target) as file:
        file.write(data)
        file.finish()
        file.publish()
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
