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
import glob, json, os, random, shutil, signal, sys, time
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

def done_so_far():
    found = set()
    for path in glob.glob(work["begun"]):
        try:
            found.add((path, os.stat(path).st_mtime_ns))
        except FileNotFoundError:  # replaced or removed since it was listed, as at the end of the work
            pass
    return found

def wait_for(child, steps, longest_s):
    "Wait until that many steps are done and a random time more has passed; the exit status if the child ends first."
    seen, deadline, due = done_so_far(), time.monotonic() + 800, None
    while time.monotonic() < deadline:
        if due is None and len(done_so_far() - seen) >= steps:
            due = time.monotonic() + rng.uniform(0, longest_s)
        if due is not None and time.monotonic() >= due:
            return None
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    raise TimeoutError(f"{steps} steps were not done in 800 s")

whole_s = run(work["whole"])
killed = early = begun = 0
while killed < work["kills"]:
    child = start(work["command"])
    status = wait_for(child, rng.choice([0, 1, 1, 2]), whole_s / work["steps"])
    if status is None:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if status == signal.SIGKILL:
        killed += 1
        begun += bool(done_so_far())
    else:  # it came to its end: from the beginning
        assert status == 0, status
        early += 1
        assert early <= work["kills"], "runs end before they are killed"
        shutil.rmtree(work["out"])
run(work["command"])
print(json.dumps({"killed": killed, "early": early, "begun": begun, "whole_s": whole_s}))
"""


@dataclass(frozen=True)
class Killed:
    """`killed` runs were killed, `begun` of them with something done; `early` ended before they were killed, and were
    begun anew; an undisturbed one took `whole_s`."""

    killed: int
    begun: int
    early: int
    whole_s: float


def kill_and_go_on(
    whole: list[str], command: list[str], repository: Path, *, out: Path, begun: str, steps: int, kills: int, seed: int
) -> Killed:
    """Let ``headrace WHOLE`` run undisturbed, then kill ``headrace COMMAND`` `kills` times and let it end.

    `out` is the folder that COMMAND works in, `begun` a pattern of the files there that are made anew at each of the
    about `steps` steps of its work. Each kill comes at a random moment: in the beginning, or after a step or two.
    """
    work = {"whole": whole, "command": command, "out": str(out), "begun": begun, "steps": steps, "kills": kills}
    work["seed"] = seed
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(work)],
        env={**os.environ, "PYTHONPATH": str(repository / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=1000,
    )
    assert done.returncode == 0, done.stdout
    return Killed(**json.loads(done.stdout.splitlines()[-1]))
