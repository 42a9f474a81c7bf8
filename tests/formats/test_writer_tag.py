from __future__ import annotations

import os
import subprocess
import sys

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


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_defunct_process_is_gone() -> None:
    defunct = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, defunct.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still to be asked how
        host, _, process, number = parts()
        assert is_abandoned(f"{host}-{defunct.pid}-{process}-{number}")
    finally:
        defunct.wait()


FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=lambda: (time.sleep(0.2), print("alone", flush=True), time.sleep(300))).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_process_whose_first_thread_alone_is_gone_is_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"alone\n":
            pytest.skip("the interpreter does not let its first thread go here")
        host, _, own, number = parts()
        with open(f"/proc/{process.pid}/stat") as file:
            assert file.read().split()[2] == "Z"
        assert not is_abandoned(f"{host}-{process.pid}-{own}-{number}")
    finally:
        process.kill()
        process.communicate()
