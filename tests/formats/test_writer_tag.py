from __future__ import annotations

import os
import subprocess

import pytest

from headrace.formats import writer_tag
from headrace.formats.writer_tag import is_abandoned


def parts() -> list[str]:
    return writer_tag.writer_tag().split("-")


def test_a_tag_names_host_process_and_a_number_of_its_own() -> None:
    first, second = parts(), parts()
    assert first[:3] == second[:3]
    assert first[3] != second[3]
    assert first[1] == str(os.getpid())


def test_tags_of_dead_processes_of_this_host_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    host, pid, process, number = parts()
    assert not is_abandoned(f"{host}-{pid}-{process}-{number}")
    assert not is_abandoned(f"{host}-{os.getppid()}-{process}-{number}")
    assert is_abandoned(f"{host}-{dead.pid}-{process}-{number}")
    assert is_abandoned(f"{host}-{pid}-01234567-{number}")  # this pid, in an earlier life of the container
    assert is_abandoned(f"{host}-{10**17}-{process}-{number}")
    for tag in ("", "a-1-b-c", f"{host}-{10**4000}-{process}-{number}", f"{host}-{dead.pid}-{process}-{number}0"):
        assert not is_abandoned(tag)
    for name, found in (("socket.gethostname", "elsewhere"), ("os.readlink", "pid:[7]")):  # another host, or container
        with monkeypatch.context() as patch:
            patch.setattr(name, lambda *_, found=found: found)
            assert not is_abandoned(f"{host}-{dead.pid}-{process}-{number}")
    assert is_abandoned(f"{host}-{dead.pid}-{process}-{number}")
