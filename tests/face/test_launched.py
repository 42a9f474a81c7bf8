"""What one process does is refused where a launcher has started several: each would do all of it, into one place."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli_bench import bench
from headrace.launched import Launch, launch
from tests.support.launch import mpirun, torchrun

VARIABLES = (
    *("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "PMI_SIZE", "PMI_RANK"),
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "2", "WORLD_SIZE": "4"}


def set_environment(monkeypatch, variables):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"PMI_SIZE": "3", "PMI_RANK": "1"}, Launch("mpirun", 1, 3, "PMI_SIZE")),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, Launch("mpirun", 0, 2, "OMPI_COMM_WORLD_SIZE")),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
        (TORCHRUN, Launch("torchrun", 2, 4, "TORCHELASTIC_RUN_ID")),
        ({**TORCHRUN, "WORLD_SIZE": "1"}, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),  # of a library that starts ranks by itself, or of a user's shell
        ({"PMI_SIZE": "2", **TORCHRUN}, Launch("torchrun", 2, 4, "TORCHELASTIC_RUN_ID")),  # torchrun, once a node
    ],
)
def test_launchers_are_found_by_their_environment(variables, found, monkeypatch):
    set_environment(monkeypatch, variables)
    assert launch() == found


def commands() -> list[tuple[str, ...]]:
    names = [(name,) for name, command in main.commands.items() if not isinstance(command, click.Group)]
    return [*names, *(("bench", name) for name in bench.commands if name != "index")]


@pytest.mark.parametrize("name", commands(), ids=" ".join)
@pytest.mark.parametrize("variables", [{"PMI_SIZE": "4", "PMI_RANK": "3"}, TORCHRUN], ids=["mpirun", "torchrun"])
def test_commands(name, variables, monkeypatch):
    set_environment(monkeypatch, variables)
    result = CliRunner().invoke(main, [*name, "x"], prog_name="headrace")
    launcher, variable = ("mpirun", "PMI_SIZE") if "PMI_SIZE" in variables else ("torchrun", "TORCHELASTIC_RUN_ID")
    assert result.exit_code == 1
    assert result.output == (
        f"Error: headrace {' '.join(name)} is one process' work, and {launcher} has started 4, each to do all of it: "
        f"start it without {launcher}, or, where one of them calls it for all, with {variable} unset\n"
    )


def test_help_and_one_process_of_a_launcher_are_as_ever(monkeypatch):
    set_environment(monkeypatch, TORCHRUN)
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0
    set_environment(monkeypatch, {"PMI_SIZE": "1"})
    assert "give DATA or --preset" in CliRunner().invoke(main, ["stats"]).output


@pytest.mark.parametrize("variables", [{"PMI_SIZE": "2", "PMI_RANK": "1"}, TORCHRUN], ids=["mpirun", "torchrun"])
@pytest.mark.parametrize("program", ["train_dlrm.py", "train_dcn_taobao.py"])
def test_examples(program, variables, repository, tmp_path, monkeypatch):
    set_environment(monkeypatch, variables)
    path, out = str(repository / "examples" / program), tmp_path / "out"
    done = subprocess.run(
        [sys.executable, path, "--data", "x", "--out", str(out)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"{program} is one process' work, and ")
    assert "examples/train_ranks.py" in done.stderr
    assert not out.exists()


SMALL = ("--preset", "criteo-kaggle", "--rows", "2e4", "--batch-size", "256", "--samples", "1024", "--rounds", "2")


@pytest.mark.ranks
@pytest.mark.timeout(1000)
def test_the_index_is_measured_over_the_ranks_of_torchrun():
    done = torchrun(2, "-m", "headrace", "bench", "index", *SMALL, "--json", "-")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)  # one rank writes
    assert (report["ranks"], report["samples"]) == (2, 2048)


@pytest.mark.ranks
@pytest.mark.timeout(1000)
def test_a_command_of_one_process_under_mpirun(tmp_path):
    out = tmp_path / "data"
    done = mpirun(2, "-m", "headrace", "generate", "criteo-kaggle", "--rows", "10", "--out", str(out))
    assert done.returncode != 0
    assert "is one process' work" in done.stdout + done.stderr
    assert not out.exists()
