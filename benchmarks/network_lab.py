"""A small cluster on one machine: nodes are network namespaces joined by a bridge, each with a link of limited rate.

Namespaces have no names: each lives as long as a process that holds it, which ends when this process does, however it
ends, and so do the processes started in it. So nothing is left behind, also after a kill. Linux, root, and the programs
of iproute2 and util-linux are needed; :func:`missing` says what is not there.

A node's sends and its receives are each limited to the rate, by a token bucket at both ends of its link. There is no
delay beyond that, and no loss.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

_PROGRAMS = ("ip", "tc", "nsenter", "unshare", "setpriv")
_COMMAND_TIMEOUT_S = 30.0

UNLIMITED = "unlimited"
INTERFACE = "eth0"


def missing() -> str | None:
    """Why no cluster can be made here; None if one can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (iproute2, util-linux)"
    if os.geteuid() != 0:
        return "it takes root to make network namespaces"
    try:
        with NetworkLab(1):
            return None
    except LabError as error:
        return str(error)


def _with_this_process(*command: str) -> tuple[str, ...]:
    """The command, ended when this process ends: by the signal, or where it has ended before the signal was asked for,
    by a look at who is the parent."""
    begin = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid()))
    return (*begin, *command)


class LabError(RuntimeError):
    """A namespace or a link could not be made."""


class NetworkLab:
    """`nodes` namespaces with the addresses 10.78.0.1 and on; as a context manager it takes them down at the end."""

    def __init__(self, nodes: int, *, rate: str = UNLIMITED) -> None:
        self.nodes = nodes
        self._holders: list[subprocess.Popen[bytes]] = []
        try:
            switch, *hosts = [self._hold() for _ in range(nodes + 1)]
            self._switch, self._hosts = switch, hosts
            self._in(switch, "ip", "link", "add", "br0", "type", "bridge")
            self._in(switch, "ip", "link", "set", "br0", "up")
            for node, host in enumerate(hosts):
                port = f"port{node}"
                peer = ("peer", "name", INTERFACE, "netns", str(host))
                self._in(switch, "ip", "link", "add", port, "type", "veth", *peer)
                self._in(switch, "ip", "link", "set", port, "master", "br0", "up")
                self._in(host, "ip", "addr", "add", f"{self.address(node)}/24", "dev", INTERFACE)
                for link in ("lo", INTERFACE):
                    self._in(host, "ip", "link", "set", link, "up")
            self.set_rate(rate)
        except BaseException:
            self.close()
            raise

    def address(self, node: int) -> str:
        return f"10.78.0.{node + 1}"

    def set_rate(self, rate: str) -> None:
        """Limit each node's sends and receives, as ``tc`` writes rates ("1gbit"); "unlimited" takes the limit away."""
        for node, host in enumerate(self._hosts):
            for namespace, link in ((host, INTERFACE), (self._switch, f"port{node}")):
                if rate == UNLIMITED:
                    self._in(namespace, "tc", "qdisc", "replace", "dev", link, "root", "pfifo")
                else:
                    bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
                    self._in(namespace, "tc", "qdisc", "replace", "dev", link, "root", *bucket)

    def start(self, node: int, *command: str, env: Mapping[str, str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a command on a node, with pipes to its standard input and output. It ends when this process ends."""
        inside = _with_this_process("nsenter", "-t", str(self._hosts[node]), "-n", "--", *command)
        return subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=dict(env))

    def close(self) -> None:
        """End the holders; each namespace goes with the last process in it."""
        for holder in self._holders:
            holder.kill()
            holder.wait()
            for pipe in (holder.stdin, holder.stdout):
                if pipe is not None:
                    pipe.close()
        self._holders = []

    def __enter__(self) -> NetworkLab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hold(self) -> int:
        """The number of a new process in a new namespace, which ends with its standard input."""
        ready = ("sh", "-c", "echo ready; exec cat >/dev/null")
        command = _with_this_process("unshare", "--net", *ready)
        pipe = subprocess.PIPE
        holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise LabError("no network namespace can be made here: `unshare --net` failed")
        return holder.pid

    @staticmethod
    def _in(namespace: int, *command: str) -> None:
        inside = ("nsenter", "-t", str(namespace), "-n", "--", *command)
        done = subprocess.run(inside, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
        if done.returncode:
            raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")


def interface_bytes() -> tuple[int, int]:
    """Bytes sent and received on the link of the node that this process is on, headers included.

    From /proc: what /sys/class/net shows belongs to the namespace that mounted it.
    """
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == INTERFACE:
            fields = counters.split()
            return int(fields[8]), int(fields[0])
    raise LabError(f"this process has no interface {INTERFACE}")
