"""One contender's processes, one a rank, on the nodes of a lab: they take orders and report, with bounded waits."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from network_lab import NetworkLab

_ENDS_WITHIN_S = 20.0
_ROOT = Path(__file__).resolve().parents[1]


class RankGroupError(RuntimeError):
    """A rank ended or did not report in time; the message names it and the last it said."""


class RankGroup:
    """`per_node` ranks of `contender` on each node of `lab`, started at once; `ready` waits until they stand.

    `settings` go to each as its first order. An order is a dictionary, which every rank answers with another.
    """

    def __init__(
        self, lab: NetworkLab, per_node: int, contender: str, settings: dict[str, Any], *, port: int, timeout_s: float
    ) -> None:
        self.contender, self.timeout_s = contender, timeout_s
        self.world_size = lab.nodes * per_node
        self._replies: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self._logs = [tempfile.TemporaryFile() for _ in range(self.world_size)]  # noqa: SIM115 - closed with this object
        self._processes: list[subprocess.Popen[bytes]] = []
        folders = [str(_ROOT / name) for name in ("src", "examples", "benchmarks")]
        for rank in range(self.world_size):
            env = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(folders),
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % per_node),
                "WORLD_SIZE": str(self.world_size),
                "LOCAL_WORLD_SIZE": str(per_node),
                "MASTER_ADDR": lab.address(0),
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "eth0",
            }
            program = (sys.executable, str(_ROOT / "benchmarks" / "rank_program.py"), contender)
            self._processes.append(lab.start(rank // per_node, *program, env=env, stderr=self._logs[rank]))
            threading.Thread(target=self._read, args=(rank,), daemon=True).start()
        self._send({**settings, "timeout_s": timeout_s})

    def ready(self) -> list[dict[str, Any]]:
        """What each rank says when it stands."""
        return self._collect("ready")

    def order(self, what: str, **details: Any) -> list[dict[str, Any]]:
        """Give all ranks an order; their answers. RankGroupError names those that end or are late."""
        self._send({"do": what, **details})
        return self._collect(what)

    def close(self) -> None:
        """Let the ranks end; those that do not within a while are killed."""
        deadline = time.monotonic() + _ENDS_WITHIN_S
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        """End the ranks at once; again: nothing."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _send(self, order: dict[str, Any]) -> None:
        line = json.dumps(order).encode() + b"\n"
        for rank, process in enumerate(self._processes):
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                raise RankGroupError(self._say([rank], "has ended")) from None

    def _collect(self, what: str) -> list[dict[str, Any]]:
        deadline = time.monotonic() + self.timeout_s
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < self.world_size:
            try:
                rank, answer = self._replies.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                late = [rank for rank in range(self.world_size) if rank not in answers]
                raise RankGroupError(self._say(late, f"did not answer '{what}' in {self.timeout_s:g} s")) from None
            if answer is None:
                raise RankGroupError(self._say([rank], f"ended at '{what}'"))
            answers[rank] = answer
        return [answers[rank] for rank in range(self.world_size)]

    def _say(self, ranks: list[int], what: str) -> str:
        said = []
        for rank in ranks:
            self._logs[rank].seek(0)
            said += [f"rank {rank}: {line}" for line in self._logs[rank].read().decode().splitlines()[-12:]]
        return "\n".join([f"{self.contender}: rank {', '.join(map(str, ranks))} {what}", *said])

    def _read(self, rank: int) -> None:
        stdout = self._processes[rank].stdout
        assert stdout is not None
        for line in stdout:
            self._replies.put((rank, json.loads(line)))
        self._replies.put((rank, None))
