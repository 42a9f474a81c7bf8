"""Start a command on several ranks, as mpirun and torchrun do."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

Done = subprocess.CompletedProcess[str]

LIMIT_S = 900.0
"""For what takes half a minute, where all cores are busy with something else: minutes have been seen."""


def mpirun(ranks: int, *command: str, options: tuple[str, ...] = (), timeout: float = LIMIT_S) -> Done:
    """`python COMMAND` on `ranks` ranks of MPI; skips the test where MPI is not installed."""
    launcher = Path(sys.executable).parent / "mpirun"
    if find_spec("mpi4py") is None or not launcher.exists():
        pytest.skip("mpi4py and mpich are not installed in this environment")
    return _run([str(launcher), *options, "-n", str(ranks), sys.executable, *command], timeout)


def torchrun(ranks: int, *command: str, timeout: float = LIMIT_S) -> Done:
    """`python COMMAND` on `ranks` ranks of torchrun."""
    module = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return _run([sys.executable, *module, *command], timeout)


def _run(arguments: list[str], timeout: float) -> Done:
    folders = [entry for entry in sys.path if entry.endswith("src")] + [os.environ.get("PYTHONPATH", "")]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*folders, root])), "OMP_NUM_THREADS": "1"}
    return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
