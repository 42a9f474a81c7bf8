"""The package's face: few names, all there, and nothing heavy or dangerous on import."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import headrace


def test_every_name_is_there_and_documented():
    for name in headrace.__all__:
        assert getattr(headrace, name).__doc__ or name == "ABSENT", name
    assert sorted(headrace.__all__) == headrace.__all__


def test_the_version_is_the_distributions():
    assert headrace.__version__ == version("headrace")


def test_import_neither_starts_mpi_nor_needs_torchrec():
    heavy = "('mpi4py.MPI', 'torchrec', 'matplotlib', 'sklearn')"
    code = f"import sys, headrace; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
