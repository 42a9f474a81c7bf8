"""One run at a time for a folder that is replaced as a whole: of two, each would throw away what the other saves.

The lock cannot be on the folder, which is another one after each save: it is on ``.NAME.lock`` beside it, which holds
the process id and the host of its owner, and is gone when the run ends. One that a killed run left is no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from headrace.formats.target_path import follow_links, hidden_stem

_ATTEMPTS = 100  # at a file that others, who end just now, take away again and again


@contextlib.contextmanager
def sole_run(path: Path) -> Iterator[None]:
    """Keep the state `path` for this run; FileExistsError, naming the other one, while another run has it.

    Where nobody may write beside `path`, or the file system knows no locks, there is no lock.
    """
    path = follow_links(path)
    lock = path.with_name(f".{hidden_stem(path)}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(lock, path)
    except FileExistsError:
        raise
    except OSError:  # read only, or without locks: who saves there is told why it cannot
        descriptor = None
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(lock)  # still locked: whoever waits at it sees that it lost its name
            os.close(descriptor)


def _lock(lock: Path, path: Path) -> int:
    """The open, locked file of the name `lock`."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "unknown"
            os.close(descriptor)
            raise FileExistsError(
                f"{path}: another run keeps its state there ({owner}): wait for its end, or give another folder"
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        if _is_named(descriptor, lock):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)
    raise FileExistsError(f"{path}: other runs begin and end there all the time; give another folder")


def _is_named(descriptor: int, name: Path) -> bool:
    """Whether the open file is still the one of that name: its owner takes the name away when it ends."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name))
    except FileNotFoundError:
        return False
