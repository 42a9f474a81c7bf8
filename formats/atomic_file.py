"""Files that appear whole or not at all.

``.NAME.HOST-PID-PROCESS-NUMBER.partial`` is the file NAME while it is written; the tag is its writer's
(:mod:`headrace.formats.writer_tag`), and for a long NAME its beginning and a digest stand. A writer that is killed
leaves it: it is removed when NAME is written again on the same host, and may be removed by hand at any time when nobody
writes NAME.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from headrace.formats.target_path import check_file_target, hidden_stem
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
    writers of `target` left is removed first. A symbolic link stays one: what it leads to is written or replaced. The
    new file has the permissions of the one in whose place it comes, and its owner where that is allowed.

    `target` is the path with links followed. IsADirectoryError, OSError, before anything is written: see
    :func:`~headrace.formats.target_path.check_file_target`.
    """

    def __init__(self, target: Path) -> None:
        self.target, former = check_file_target(target)
        stem = hidden_stem(self.target)
        _clear_abandoned(self.target.parent, stem)
        self._partial = self.target.with_name(f".{stem}.{writer_tag()}{PARTIAL_SUFFIX}")
        try:
            self._stream = _create(self._partial, former)
        except OSError as error:  # of the name that was asked for
            raise OSError(error.errno, error.strerror, str(target)) from error
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
        try:
            self._stream.close()
        except OSError:  # what is still buffered finds no room
            if error is None:
                raise
        finally:
            if not self._published:
                with contextlib.suppress(OSError):
                    os.unlink(self._partial)


def write_atomic(target: Path, data: bytes) -> None:
    """Write `target` in one step: a reader sees the old file or the new one, never a part."""
    with AtomicFile(target) as file:
        file.write(data)
        file.finish()
        file.publish()
    sync_folder(file.target.parent)


def _create(path: Path, former: os.stat_result | None) -> BinaryIO:
    """A new file, never open to more than the `former` one was."""
    mode = 0o666 if former is None else stat.S_IMODE(former.st_mode)
    stream = open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode & 0o777))  # noqa: SIM115 (the caller's)
    if former is not None:  # as far as it may be had: another's file, or a file system without owners
        with contextlib.suppress(OSError):
            os.fchown(stream.fileno(), former.st_uid, former.st_gid)
        with contextlib.suppress(OSError):
            os.fchmod(stream.fileno(), mode)  # what the process's umask took away, too
    return stream


def _clear_abandoned(folder: Path, stem: str) -> None:
    """Remove the partial files of that stem whose writers were killed."""
    prefix = f".{stem}."
    with contextlib.suppress(OSError):  # no such folder, or not ours: who opens the new file is told
        for name in os.listdir(folder):
            if name.startswith(prefix) and is_partial(name) and is_abandoned(name[len(prefix) : -len(PARTIAL_SUFFIX)]):
                with contextlib.suppress(OSError):  # one that cannot go keeps no other
                    os.unlink(folder / name)


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
