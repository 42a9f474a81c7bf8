"""Commands that are killed (SIGKILL) at random moments and started again, until one of them comes to its end.

A program imports what is needed once, then forks a child for each run, so that a run costs no second of imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """
import json, os, random, signal, sys, time
from headrace.cli import main

work = json.loads(sys.argv[1])
rng = random.Random(work["seed"])

def start(command):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = main(command, standalone_mode=False) or 0
        except BaseException as error:
            print(f"{command}: {error!r}", file=sys.stderr, flush=True)
        os._exit(code)
    return child

def run(command):
    began = time.monotonic()
    status = os.waitpid(start(command), 0)[1]
    assert status == 0, (command, status)
    return time.monotonic() - began

whole_s = run(work["whole"])
longest_s = 1.5 * whole_s / work["kills"]
killed = early = 0
while killed < work["kills"]:
    child = start(work["command"])
    time.sleep(rng.uniform(0, longest_s))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if status == signal.SIGKILL:
        killed += 1
    else:
        assert status == 0, status
        early += 1
        assert early <= work["kills"], "runs end before they are killed"
run(work["command"])
print(json.dumps({"killed": killed, "early": early, "whole_s": whole_s}))
"""


@dataclass(frozen=True)
class Killed:
    """`killed` runs were killed, `early` ended before; an undisturbed one took `whole_s`."""

    killed: int
    early: int
    whole_s: float


def kill_and_go_on(whole: list[str], command: list[str], repository: Path, *, kills: int, seed: int) -> Killed:
    """Let ``headrace WHOLE`` run undisturbed, then kill ``headrace COMMAND`` `kills` times and let it end.

    Each is killed at a random moment of its run, the moments such that the work is not done before the last one.
    """
    work = {"whole": whole, "command": command, "kills": kills, "seed": seed}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(work)],
        env={**os.environ, "PYTHONPATH": str(repository / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=1000,
    )
    assert done.returncode == 0, done.stdout
    return Killed(**json.loads(done.stdout.splitlines()[-1]))
