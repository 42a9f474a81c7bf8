"""Files that appear whole or not at all.

``.NAME.HOST-PID-PROCESS-NUMBER.partial`` is the file NAME while it is written; the tag is its writer's
(:mod:`headrace.formats.writer_tag`). A writer that is killed leaves it: it is removed when NAME is written again on the
same host, and may be removed by hand at any time when nobody writes NAME.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from headrace.formats.writer_tag import is_abandoned, writer_tag

PARTIAL_SUFFIX = ".partial"


def is_partial(name: str) -> bool:
    """Whether `name` is that of a file that was not published (by a run that was killed, or that still writes)."""
    return name.startswith(".") and name.endswith(PARTIAL_SUFFIX)


@contextlib.contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """What the system refuses of an open file names the file: a write does not, when a disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno is None:
            raise OSError(f"{path}: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error


class AtomicFile:
    """A new file beside `target`, under a hidden name, that takes its place when it is published.

    States: open --finish--> on disk --publish--> named; leaving the context in another state removes it. What killed
    writers of `target` left is removed first. IsADirectoryError, before anything is written, for a folder.
    """

    def __init__(self, target: Path) -> None:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder stands where the file is to be written", str(target))
        self.target = target
        _clear_abandoned(target)
        self._partial = target.with_name(f".{target.name}.{writer_tag()}{PARTIAL_SUFFIX}")
        self._stream = open(self._partial, "xb")  # noqa: SIM115 (closed by finish or __exit__)
        self._published = False

    @property
    def stream(self) -> BinaryIO:
        """The open file, for who writes to a stream (Arrow); `finish` closes it."""
        return self._stream

    def write(self, data: bytes) -> None:
        with named_errors(self.target):
            self._stream.write(data)

    def finish(self) -> None:
        """Flush to disk and close."""
        with named_errors(self.target):
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
        if not self._published:
            with contextlib.suppress(OSError):  # on a full disk what is buffered stays unwritten, and goes all the same
                self._stream.close()
            with contextlib.suppress(OSError):
                os.unlink(self._partial)


def write_atomic(target: Path, data: bytes) -> None:
    """Write `target` in one step: a reader sees the old file or the new one, never a part."""
    with AtomicFile(target) as file:
        file.write(data)
        file.finish()
        file.publish()
    sync_folder(target.parent)


def _clear_abandoned(target: Path) -> None:
    """Remove the partial files of `target` whose writers were killed."""
    prefix = f".{target.name}."
    with contextlib.suppress(OSError):  # no such folder, or not ours: who opens the new file is told
        for name in os.listdir(target.parent):
            if name.startswith(prefix) and is_partial(name) and is_abandoned(name[len(prefix) : -len(PARTIAL_SUFFIX)]):
                with contextlib.suppress(OSError):  # one that cannot go keeps no other
                    os.unlink(target.with_name(name))


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
