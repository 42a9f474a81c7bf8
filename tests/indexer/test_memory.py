"""What control groups leave of memory, in trees of files as the system shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.indexer.memory import available_bytes, check_memory, in_words

MIB = 1 << 20
MEMINFO = "MemTotal:       4096 kB\nMemAvailable:   1048576 kB\n"  # 1 GiB
V2_MOUNT = "30 23 0:26 {group} {folder} rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNT = "31 23 0:27 {group} {folder} rw - cgroup cgroup rw,memory\n"
OTHER_MOUNTS = (
    "22 1 8:1 / / rw,relatime - ext4 /dev/root rw\n32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
)
V1_NAMES = {"max": "limit_in_bytes", "current": "usage_in_bytes"}


def system(root: Path, cgroup: str, mounts: str, meminfo: str = MEMINFO) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(meminfo)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(OTHER_MOUNTS + mounts)
    return root


def group(folder: Path, limit: str | int | None, used: int = 0, stat: str = "", version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {"max": "max", "current": "current"} if version == 2 else V1_NAMES
    if limit is not None:
        (folder / f"memory.{names['max']}").write_text(f"{limit}\n")
        (folder / f"memory.{names['current']}").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(stat)


@pytest.mark.parametrize("tightest", ["", "job.slice", "job.slice/a.scope", None])
def test_every_group_that_the_process_is_part_of_counts(tmp_path: Path, tightest: str | None) -> None:
    root = system(tmp_path, "0::/job.slice/a.scope\n", V2_MOUNT.format(group="/", folder="/sys/fs/cgroup"))
    top = root / "sys/fs/cgroup"
    for name in ("", "job.slice", "job.slice/a.scope"):
        tight = name == tightest
        group(top / name, 300 * MIB if tight else "max", used=100 * MIB)
    group(top / "job.slice/b.scope", 1)  # a neighbour
    assert available_bytes(root) == (1 << 30 if tightest is None else 200 * MIB)


def test_the_topmost_group_has_no_limit(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/a\n", V2_MOUNT.format(group="/", folder="/sys/fs/cgroup"))
    group(root / "sys/fs/cgroup", None)
    group(root / "sys/fs/cgroup/a", 64 * MIB, used=1 * MIB)
    assert available_bytes(root) == 63 * MIB


def test_pages_of_files_can_be_had(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/\n", V2_MOUNT.format(group="/", folder="/sys/fs/cgroup"))
    stat = f"anon 5\ninactive_file {30 * MIB}\nactive_file {20 * MIB}\nslab_reclaimable {10 * MIB}\nshmem 7\n"
    group(root / "sys/fs/cgroup", 100 * MIB, used=100 * MIB, stat=stat)
    assert available_bytes(root) == 60 * MIB


def test_version_1_beside_version_2(tmp_path: Path) -> None:
    mounts = V1_MOUNT.format(group="/", folder="/sys/fs/cgroup/memory")
    mounts += V2_MOUNT.format(group="/", folder="/sys/fs/cgroup/unified")
    root = system(tmp_path, "7:cpu,cpuacct:/c\n4:hugetlb,memory:/m/own\n0::/u\n", mounts)
    memory = root / "sys/fs/cgroup/memory"
    stat = f"inactive_file 1\ntotal_inactive_file {4 * MIB}\ntotal_active_file {2 * MIB}\n"
    group(memory, 9223372036854771712, version=1)
    group(memory / "m", 90 * MIB, used=50 * MIB, stat=stat, version=1)
    group(memory / "m/own", 80 * MIB, used=1 * MIB, version=1)
    group(root / "sys/fs/cgroup/unified/u", None)
    assert available_bytes(root) == 46 * MIB


@pytest.mark.parametrize("own", ["/docker/0123", "/", "/../0456", "/elsewhere"])
def test_a_container_sees_its_group_as_the_mounted_one(tmp_path: Path, own: str) -> None:
    mounts = V1_MOUNT.format(group="/docker/0123", folder="/sys/fs/cgroup/memory\\040x")
    root = system(tmp_path, f"4:memory:{own}\n", mounts)
    group(root / "sys/fs/cgroup/memory x", 80 * MIB, used=30 * MIB, version=1)
    assert available_bytes(root) == 50 * MIB


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/\n", V2_MOUNT.format(group="/", folder="/sys/fs/cgroup"))
    group(root / "sys/fs/cgroup", 10, used=20)
    assert available_bytes(root) == 0


def test_what_cannot_be_read_is_no_limit(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    root = system(tmp_path, "0::/a\nnonsense\n::\n", "short\n - \n1 2 3 4 5 - cgroup2\n", meminfo="MemAvailable: x\n")
    assert available_bytes(root) is None


def test_this_system_has_memory() -> None:
    available = available_bytes()
    assert available is None or available > 0


def test_more_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.indexer.memory.available_bytes", lambda: 3 * MIB)
    check_memory("a table", 3 * MIB)
    with pytest.raises(MemoryError, match=r"a table needs at least 3.0 MiB of memory, and 3.0 MiB are available"):
        check_memory("a table", 3 * MIB + 1)
    monkeypatch.setattr("headrace.indexer.memory.available_bytes", lambda: None)
    check_memory("a table", 1 << 60)


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1 << 60, "1,024.0 PiB")]
)
def test_sizes_in_words(count: int, words: str) -> None:
    assert in_words(count) == words
