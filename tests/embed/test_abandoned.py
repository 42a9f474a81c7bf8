"""What killed writers left beside a checkpoint: whose it is, and what becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.embed.abandoned import clear_abandoned, put_aside, temporary_folder
from headrace.embed.run_folder import write_folder
from headrace.formats import writer_tag


def fill(folder, text="{}"):
    folder.mkdir()
    (folder / "meta.json").write_text(text)
    return folder


@pytest.fixture
def path(tmp_path):
    return fill(tmp_path / "run")


@pytest.fixture(scope="module")
def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def of_writer(path, monkeypatch, *, pid=None, host=None, process=None):
    """A folder name that another writer would have taken."""
    with monkeypatch.context() as patch:
        if pid is not None:
            patch.setattr(os, "getpid", lambda: pid)
        if host is not None:
            patch.setattr("socket.gethostname", lambda: host)
        if process is not None:
            patch.setattr(writer_tag, "_PROCESS", process)
        return temporary_folder(path)


def test_only_folders_of_dead_writers_of_this_host_and_name_go(path, monkeypatch, dead_pid):
    gone = [
        fill(of_writer(path, monkeypatch, pid=dead_pid)),
        fill(of_writer(path, monkeypatch, pid=dead_pid).with_suffix(".old")),
        fill(of_writer(path, monkeypatch, process="01234567")),  # this pid, in an earlier life of the container
    ]
    kept = [
        fill(temporary_folder(path)),  # another thread of this process
        fill(of_writer(path, monkeypatch, pid=os.getppid())),
        fill(of_writer(path, monkeypatch, pid=dead_pid, host="elsewhere")),
        fill(of_writer(path.with_name("run.2"), monkeypatch, pid=dead_pid)),
        fill(path.with_name(".run.tmp")),
        fill(path.with_name(".run.notes")),
    ]
    clear_abandoned(path)
    assert not any(folder.exists() for folder in gone)
    assert all(folder.exists() for folder in kept)
    assert (path / "meta.json").read_text() == "{}"


def test_a_checkpoint_that_lost_its_name_gets_it_back(path, monkeypatch, dead_pid):
    new = fill(of_writer(path, monkeypatch, pid=dead_pid), "new")
    path.rename(new.with_suffix(".old"))
    assert put_aside(path) == new.with_suffix(".old")
    clear_abandoned(path)
    assert os.listdir(path.parent) == ["run"]
    assert (path / "meta.json").read_text() == "{}"
    assert put_aside(path) is None


def test_what_a_living_writer_put_aside_is_left_alone(path, monkeypatch):
    aside = temporary_folder(path).with_suffix(".old")
    path.rename(aside)
    clear_abandoned(path)
    assert put_aside(path) == aside
    assert not path.exists()


def test_checkpoints_with_long_names(tmp_path, monkeypatch, dead_pid):
    path = tmp_path / ("n" * 255)
    folder = of_writer(path, monkeypatch, pid=dead_pid)
    fill(folder)
    other = fill(of_writer(path.with_name("n" * 254 + "m"), monkeypatch, pid=dead_pid))
    write_folder(path, {}, lambda _: None)
    write_folder(path, {}, lambda _: None)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, other.name])
    with pytest.raises(OSError, match="File name too long"):
        write_folder(tmp_path / ("n" * 256), {}, lambda _: None)


def test_nothing_to_clear(tmp_path):
    clear_abandoned(tmp_path / "no" / "run")
    assert put_aside(tmp_path / "no" / "run") is None


KILLED = """
import os, signal, sys
from pathlib import Path
from headrace.embed.run_folder import write_folder
def files(folder):
    (folder / "data.bin").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
write_folder(Path(sys.argv[1]), {}, files)
"""


def test_the_next_save_removes_what_a_killed_one_left(tmp_path):
    from headrace.embed.run_folder import read_meta, write_folder

    source = Path(__file__).resolve().parents[2] / "src"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    subprocess.run(command, env={"PYTHONPATH": str(source)}, timeout=60, check=False)
    (left,) = os.listdir(tmp_path)
    assert left.endswith(".tmp")
    write_folder(tmp_path / "run", {}, lambda folder: None)
    read_meta(tmp_path / "run")
    assert os.listdir(tmp_path) == ["run"]
