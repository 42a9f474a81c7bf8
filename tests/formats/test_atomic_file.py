"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.formats import atomic_file
from headrace.formats.atomic_file import AtomicFile, is_partial, named_errors, write_atomic
from headrace.formats.writer_tag import writer_tag


def test_a_file_appears_when_it_is_published(tmp_path: Path) -> None:
    target = tmp_path / "día 0"
    target.write_bytes(b"old")
    with AtomicFile(target) as file:
        file.write(b"new")
        file.finish()
        assert target.read_bytes() == b"old"
        (partial,) = (name for name in os.listdir(tmp_path) if name != target.name)
        assert is_partial(partial)
        file.publish()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == [target.name]


@pytest.mark.parametrize("told", [True, False])
def test_a_file_that_finds_no_room_when_it_is_closed_vanishes_and_the_first_error_is_told(
    tmp_path: Path, told: bool
) -> None:
    def write() -> None:
        with AtomicFile(tmp_path / "x") as file:
            file.stream.close()
            file._stream = open("/dev/full", "wb")  # noqa: SIM115 (what is buffered cannot be written)
            file.write(b"new")
            if told:
                raise OSError("at first")

    with pytest.raises(OSError, match="at first" if told else "No space left"):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("finished", [False, True])
def test_a_file_that_is_not_published_vanishes(tmp_path: Path, finished: bool) -> None:
    with AtomicFile(tmp_path / "x") as file:
        file.write(b"new")
        if finished:
            file.finish()
    assert os.listdir(tmp_path) == []


def test_two_writers_of_one_name_do_not_share_a_file(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "x") as first, AtomicFile(tmp_path / "x") as second:
        for file, data in ((first, b"1"), (second, b"2")):
            file.write(data)
            file.finish()
            file.publish()
    assert (tmp_path / "x").read_bytes() == b"2"


def test_file_and_folder_are_flushed_to_disk_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(atomic_file.os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    monkeypatch.setattr(atomic_file.os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    write_atomic(tmp_path / "x", b"data")
    assert [is_partial(os.path.basename(done[0])), *done[1:]] == [True, "replace", str(tmp_path)]
    assert (tmp_path / "x").stat().st_mode & 0o600 == 0o600


def test_names_of_partial_files() -> None:
    assert [is_partial(n) for n in (".x.partial", "x.partial", ".x", "x")] == [True, False, False, False]


WRITER = """
import sys, time
from pathlib import Path
from headrace.formats.atomic_file import AtomicFile
with AtomicFile(Path(sys.argv[1])) as file:
    file.write(b"half")
    print("open", flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_writer_left_goes_when_the_file_is_written_again(tmp_path: Path, signal_number: int) -> None:
    target = tmp_path / "x.arrow"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, target], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        (partial,) = os.listdir(tmp_path)
        write_atomic(target, b"while it lives")
        assert sorted(os.listdir(tmp_path)) == [partial, "x.arrow"]
    finally:
        writer.send_signal(signal_number)
        writer.communicate(timeout=120)
    write_atomic(tmp_path / "arrow", b"another file")
    write_atomic(tmp_path / "x", b"another file")
    assert sorted(os.listdir(tmp_path)) == [partial, "arrow", "x", "x.arrow"]
    write_atomic(target, b"new")
    assert sorted(os.listdir(tmp_path)) == ["arrow", "x", "x.arrow"]
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("tag", ["", "0011aabb", "0123abcd-1-0123abcd-0123abcd", "notes"])
def test_other_hidden_files_are_left_alone(tmp_path: Path, tag: str) -> None:
    other = tmp_path / f".x.{tag}.partial"
    other.write_bytes(b"of another host, or by hand")
    write_atomic(tmp_path / "x", b"new")
    assert sorted(os.listdir(tmp_path)) == [other.name, "x"]


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path) -> None:
    host, _, process, _ = writer_tag().split("-")
    for k in range(3):  # a folder among files, whatever their order
        name = tmp_path / f".x.{host}-{10**17}-{process}-0000000{k}.partial"
        name.mkdir() if k == 1 else name.touch()
    write_atomic(tmp_path / "x", b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f".x.{host}-{10**17}-{process}-00000001.partial", "x"]


FULL = """
import os, resource, signal, sys
from pathlib import Path
from headrace.formats.atomic_file import AtomicFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # as a disk that is full
for data in (b"x" * 100_000, b"x" * 5001, b"x" * 4000):
    try:
        with AtomicFile(Path(sys.argv[1])) as file:
            file.write(data)  # the second is in the buffer, and fails when it is flushed
            if len(data) == 4000:
                file.write(b"y" * 4000)
            file.finish()
    except OSError as error:
        print(error.errno, error.filename, os.listdir(Path(sys.argv[1]).parent))
"""


def test_nothing_is_left_on_a_full_disk_and_the_error_names_the_file(tmp_path: Path) -> None:
    target = tmp_path / "x.arrow"
    done = subprocess.run([sys.executable, "-c", FULL, target], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == [f"{errno.EFBIG} {target} []"] * 3
    assert done.stderr == ""


def test_an_error_without_a_number_keeps_its_words() -> None:
    with pytest.raises(OSError, match=r"^x\.npy: 8 requested and 0 written$"), named_errors("x.npy"):
        raise OSError("8 requested and 0 written")
    with pytest.raises(FileNotFoundError, match=r"'y'$"), named_errors("x"), open("y"):
        pass


def test_a_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for target in (tmp_path / "x", Path(".")):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(IsADirectoryError, match=f"where the file is to be written: '{target}'"):
            AtomicFile(target)
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("name", ["n" * 212, "n" * 255, "ä" * 127, "n" * 200])
def test_long_names(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    host, _, process, _ = writer_tag().split("-")
    with AtomicFile(target) as file:
        (partial,) = os.listdir(tmp_path)
        assert is_partial(partial)
        partial.encode()  # no half of a character
        left = tmp_path / (partial.rsplit(".", 2)[0] + f".{host}-{10**9}-{process}-00000000.partial")
        left.touch()  # of a killed writer
        file.finish()
        file.publish()
    other = tmp_path / (name[:-1] + "m")
    write_atomic(other, b"")
    assert left.exists()  # of another file, whose name begins alike
    write_atomic(target, b"new")
    assert sorted(os.listdir(tmp_path)) == sorted([name, other.name])


def test_a_name_that_is_too_long_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("n" * 255 + "n")
    for target in (tmp_path / ("n" * 256), tmp_path / "link"):
        with pytest.raises(OSError, match="File name too long"):
            AtomicFile(target)
    assert os.listdir(tmp_path) == ["link"]


def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("there/real")
    (tmp_path / "chain").symlink_to("link")
    (tmp_path / "dangling").symlink_to("there/new")
    (tmp_path / "circle").symlink_to("circle")
    write_atomic(tmp_path / "chain", b"new")
    write_atomic(tmp_path / "dangling", b"first")
    with pytest.raises(OSError, match="Too many levels"):
        write_atomic(tmp_path / "circle", b"")
    assert (tmp_path / "there" / "real").read_bytes() == b"new"
    assert (tmp_path / "there" / "new").read_bytes() == b"first"
    assert all((tmp_path / name).is_symlink() for name in ("link", "chain", "dangling", "circle"))
    assert sorted(os.listdir(tmp_path / "there")) == ["new", "real"]


def test_what_no_file_can_take_the_place_of_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    read, write = os.pipe()
    for target in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null"), Path(f"/dev/fd/{write}")):
        with pytest.raises(OSError, match="pipe, socket or device stands where the file is to be written"):
            AtomicFile(target)
    os.close(read)
    os.close(write)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o400, 0o777])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "x"
    target.touch()
    target.chmod(mode)
    with AtomicFile(target) as file:
        (partial,) = (name for name in os.listdir(tmp_path) if name != "x")
        assert (tmp_path / partial).stat().st_mode & 0o777 == mode
        file.write(b"new")
        file.finish()
        file.publish()
    assert target.stat().st_mode & 0o777 == mode
    assert target.read_bytes() == b"new"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.touch()
    os.chown(target, 1234, 1235)
    write_atomic(target, b"new")
    assert (target.stat().st_uid, target.stat().st_gid) == (1234, 1235)
