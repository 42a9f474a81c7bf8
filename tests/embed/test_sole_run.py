"""One run at a time for a state folder, whatever becomes of the others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from headrace.embed import sole_run as module
from headrace.embed.sole_run import sole_run

HOLD = """
import sys
from pathlib import Path
from headrace.embed.sole_run import sole_run

with sole_run(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_and_nothing_is_left(tmp_path):
    path = tmp_path / "deep" / "state"
    with sole_run(path), pytest.raises(FileExistsError, match=rf"state: .*\(process {os.getpid()} on "), sole_run(path):
        pytest.fail("entered")
    assert os.listdir(tmp_path / "deep") == []
    with pytest.raises(KeyError), sole_run(path):
        raise KeyError
    with sole_run(path), sole_run(tmp_path / "deep" / "other"):
        pass
    assert os.listdir(tmp_path / "deep") == []


def test_the_folder_may_be_replaced_meanwhile_and_named_by_a_link(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    with sole_run(tmp_path / "link"):
        (tmp_path / "state").rename(tmp_path / "old")
        (tmp_path / "state").mkdir()
        with pytest.raises(FileExistsError), sole_run(tmp_path / "state"):
            pytest.fail("entered")


def test_a_name_of_any_length_is_locked(tmp_path):
    with sole_run(tmp_path / ("n" * 250)):
        (lock,) = os.listdir(tmp_path)
        assert lock.endswith(".lock")
        with pytest.raises(FileExistsError), sole_run(tmp_path / ("n" * 250)):
            pytest.fail("entered")


def test_a_killed_run_locks_nothing_out(tmp_path, repository):
    path = tmp_path / "state"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env={**os.environ, "PYTHONPATH": str(repository / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(FileExistsError, match=f"process {other.pid} on "), sole_run(path):
            pytest.fail("entered")
    finally:
        other.kill()
        other.communicate(timeout=60)
    assert os.listdir(tmp_path) == [".state.lock"]
    with sole_run(path):
        pass
    assert os.listdir(tmp_path) == []


def test_never_two_inside(tmp_path):
    inside, entered, most = [], [], []

    def run():
        for _ in range(200):
            try:
                with sole_run(tmp_path / "state"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    entered.append(1)
            except FileExistsError:
                pass

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert max(most) == 1
    assert len(entered) >= 1
    assert os.listdir(tmp_path) == []


def test_a_lock_that_lost_its_name_is_not_one(tmp_path, monkeypatch):
    flock, taken_away = module.fcntl.flock, []

    def late(descriptor, how):  # its owner ended between open and lock
        if not taken_away:
            taken_away.append(os.unlink(tmp_path / ".state.lock"))
        flock(descriptor, how)

    monkeypatch.setattr(module.fcntl, "flock", late)
    with sole_run(tmp_path / "state"):
        assert os.listdir(tmp_path) == [".state.lock"]
        monkeypatch.undo()
        with pytest.raises(FileExistsError), sole_run(tmp_path / "state"):
            pytest.fail("entered")


@pytest.mark.parametrize("error", [OSError(38, "no locks"), PermissionError(13, "not yours")])
def test_without_locks_runs_are_not_kept_apart_but_run(tmp_path, monkeypatch, error):
    def refuse(descriptor, how):
        raise error

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    with sole_run(tmp_path / "state"):
        pass
