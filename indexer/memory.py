"""How much memory this process can still get, so that sizes from outside are refused before they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class _Version(NamedTuple):
    """Names of a version of control groups."""

    file_system: str
    limit: str
    used: str
    cache: tuple[str, ...]


_VERSION_1 = _Version(
    "cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_VERSION_2 = _Version("cgroup2", "memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable"))


def available_bytes(root: Path = Path("/")) -> int | None:
    """What the system calls available, or what the process's control groups leave of their limits if that is less; None
    where neither can be read. `root`: where ``/proc`` and ``/sys`` are."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    for version, folder in _control_groups(root):
        with suppress(OSError, ValueError):  # "max" is no limit, and the topmost group has none
            found.append(max(0, int((folder / version.limit).read_text()) - _held(folder, version)))
    return min(found, default=None)


def _held(folder: Path, version: _Version) -> int:
    """Bytes that a group uses, without the files' pages that the system keeps for as long as nobody needs the room."""
    used = int((folder / version.used).read_text())
    with suppress(OSError, ValueError):
        numbers = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used -= sum(int(numbers.get(name, 0)) for name in version.cache)
    return max(0, used)


def _control_groups(root: Path) -> Iterator[tuple[_Version, Path]]:
    """The folder of the process's own group, and those of all groups that it is part of, in both versions."""
    own: dict[_Version, str] = {}
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                own[_VERSION_2] = path
            elif "memory" in controllers.split(","):
                own[_VERSION_1] = path
    for version, path in own.items():
        for mounted, folder in _mounts(root, version):
            group = folder / _below(path, mounted)
            yield version, group
            for parent in group.parents:
                if not parent.is_relative_to(folder):
                    break
                yield version, parent


def _below(path: str, mounted: str) -> PurePosixPath:
    """A group's path below the one that is mounted; that one itself where the group lies outside, and so cannot be seen
    from here."""
    with suppress(ValueError):
        below = PurePosixPath(path).relative_to(mounted)
        if ".." not in below.parts:
            return below
    return PurePosixPath()


def _mounts(root: Path, version: _Version) -> Iterator[tuple[str, Path]]:
    """(path of the group, folder) of each place where groups of that version that count memory are mounted."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    for line in lines:
        before, _, after = line.partition(" - ")
        places, kinds = before.split(), after.split()
        if len(places) < 5 or len(kinds) < 3 or kinds[0] != version.file_system:
            continue
        if version is _VERSION_2 or "memory" in kinds[2].split(","):
            yield _unescaped(places[3]), root / _unescaped(places[4]).lstrip("/")


def _unescaped(path: str) -> str:
    r"""Spaces and their like stand in mountinfo as \040."""
    for code in (r"\040", r"\011", r"\012", r"\134"):
        path = path.replace(code, chr(int(code[1:], 8)))
    return path


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
