"""Who writes under a temporary name, and whether that process is gone.

A tag is ``HOST-PID-PROCESS-NUMBER``; HOST, PROCESS and NUMBER are 8 hex digits each. HOST stands for the host's name
and the namespace of process ids: containers may share a name, and see each other's processes as gone. PROCESS tells
apart two processes that were given the same id one after the other. What a writer left may be removed if it ran on this
HOST and is gone, or defunct; what is of others is left alone, whatever its age.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket

TAG = r"[0-9a-f]{8}-[0-9]+-[0-9a-f]{8}-[0-9a-f]{8}"
"""Regular expression of a tag."""

_PROCESS = secrets.token_hex(4)


def writer_tag() -> str:
    """A new tag of this process; no two are equal."""
    return f"{_host()}-{os.getpid()}-{_PROCESS}-{secrets.token_hex(4)}"


def is_abandoned(tag: str) -> bool:
    """Whether `tag` is one of a process of this host that is gone; False for what is no tag."""
    if re.fullmatch(TAG, tag) is None:
        return False
    host, pid_text, process, _ = tag.split("-")
    if host != _host() or len(pid_text) > 18:
        return False
    pid = int(pid_text)
    if pid == os.getpid():
        return process != _PROCESS
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return _is_defunct(pid)


def _is_defunct(pid: int) -> bool:
    """Whether the process has ended and only waits for its parent to ask how; False where that cannot be told."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]  # the name before it may hold anything
        # The first thread may be gone while others work on.
        return state in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except (OSError, IndexError):
        return False


def _host() -> str:
    """Where a process id means one process."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return hashlib.blake2b(f"{socket.gethostname()} {namespace}".encode(), digest_size=4).hexdigest()
