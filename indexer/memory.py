"""How much memory this process can still get, so that sizes from outside are refused before they are asked for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of the control group, versions 2 and 1, as a container sees them."""


def available_bytes() -> int | None:
    """What the system calls available, or the container's limit if that is less; None where neither can be read."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # "max" is no limit
            found.append(int(limit.read_text()))
    return min(found, default=None)


def check_memory(what: str, needed: int) -> None:
    """MemoryError, naming both sizes, if `what` needs more than there is."""
    available = available_bytes()
    if available is not None and needed > available:
        raise MemoryError(
            f"{what} needs at least {in_words(needed)} of memory, and {in_words(available)} are available"
        )


def in_words(count: int) -> str:
    """Bytes as "1.5 GiB"."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} PiB"
