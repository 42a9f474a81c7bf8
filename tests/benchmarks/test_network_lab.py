"""The cluster of network namespaces: limited links, and nothing left behind. Skipped where none can be made."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SEND = """
import socket, sys, time
server = socket.create_server(("", 5000)) if sys.argv[1] == "take" else None
print("up", flush=True)
if server:
    server.settimeout(60)
    connection, _ = server.accept()
    begin, got = time.monotonic(), 0
    while data := connection.recv(1 << 16):
        got += len(data)
    print(got, time.monotonic() - begin, flush=True)
else:
    with socket.create_connection((sys.argv[2], 5000), timeout=60) as connection:
        connection.sendall(bytes(int(sys.argv[3])))
"""
HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from network_lab import NetworkLab
lab = NetworkLab(1)
inside = lab.start(0, "sleep", "600", env={"PATH": sys.argv[2]}, stderr=sys.stderr.buffer)
print(*[holder.pid for holder in lab._holders], inside.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def network_lab(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import network_lab

    why = network_lab.missing()
    if why is not None:
        pytest.skip(f"no network namespaces: {why}")
    return network_lab


def test_a_link_carries_what_its_rate_allows_and_the_interface_counts_it(network_lab):
    size = 1_500_000
    with network_lab.NetworkLab(2, rate="20mbit") as lab, tempfile.TemporaryFile() as log:
        options = {"env": dict(os.environ), "stderr": log}
        taker = lab.start(0, sys.executable, "-c", SEND, "take", **options)
        assert taker.stdout.readline() == b"up\n"
        lab.start(1, sys.executable, "-c", SEND, "give", lab.address(0), str(size), **options).communicate(timeout=60)
        got, seconds = map(float, taker.communicate(timeout=60)[0].split())
        counted = lab.start(0, "cat", "/proc/net/dev", **options).communicate(timeout=60)[0].decode()
    assert got == size
    assert seconds > 0.8 * (size - 256 * 1024) * 8 / 20e6  # the bucket lets its size through at once
    received = next(int(line.split()[1]) for line in counted.splitlines() if line.strip().startswith("eth0:"))
    assert size < received < 1.1 * size


def test_after_a_kill_the_namespaces_and_what_runs_in_them_are_gone(network_lab):
    command = [sys.executable, "-c", HOLD, str(BENCHMARKS), os.environ["PATH"]]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    processes = [int(pid) for pid in holder.stdout.readline().split()]
    assert len(processes) == 3
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in processes if _runs(pid)]


def test_a_command_that_fails_is_named(network_lab):
    with pytest.raises(network_lab.LabError, match=r"tc qdisc .* rate fast"):
        network_lab.NetworkLab(1, rate="fast")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
