"""Whether a launcher started this process beside others: what one process does would be done once by each of them."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """The launcher of several processes, the number of this one, how many there are, and the variable that says so."""

    name: str
    rank: int
    size: int
    variable: str


_LAUNCHERS = (
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    ("mpirun", "PMI_SIZE", "PMI_RANK", "PMI_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""Name, and variables: which only it sets, number of the process, how many there are."""


def launch() -> Launch | None:
    """By the environment: None for a process that is alone, whatever started it."""
    for name, variable, rank, size in _LAUNCHERS:
        if variable in os.environ and int(os.environ.get(size, "1")) > 1:
            return Launch(name, int(os.environ.get(rank, "0")), int(os.environ[size]), variable)
    return None


def why_not_here(what: str, instead: str | None = None) -> str | None:
    """Why `what`, one process' work, cannot run here, and what to do `instead`; None where this process is alone."""
    found = launch()
    if found is None:
        return None
    instead = instead or (
        f"start it without {found.name}, or, where one of them calls it for all, with {found.variable} unset"
    )
    return f"{what} is one process' work, and {found.name} has started {found.size}, each to do all of it: {instead}"


def refuse_several(what: str, instead: str) -> None:
    """End a program of one process that a launcher has started several times (exit code 1)."""
    if why := why_not_here(what, instead):
        raise SystemExit(why)
