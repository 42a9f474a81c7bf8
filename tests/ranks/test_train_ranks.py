"""`examples/train_ranks.py`: one program under mpirun, torchrun and as one process, with the same figures."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

import headrace
from headrace.embed.run_folder import CheckpointError
from tests.support.launch import mpirun, python, torchrun

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(1000)]

ROWS, EVAL_ROWS, BATCH = 1530, 350, 100  # 16 steps an epoch, the last one of 30 rows


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train_ranks") / "data"
    headrace.generate("criteo-kaggle", folder, rows=ROWS, eval_rows=EVAL_ROWS, files=2, seed=3)
    sizes = ("--batch-size", str(BATCH), "--dim", "4", "--epochs", "2", "--window", "4")
    return ("--data", str(folder), "--eval", str(folder / "eval"), *sizes)


@pytest.fixture(scope="module")
def program(repository):
    return str(repository / "examples" / "train_ranks.py")


def report_of(done, out):
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("report: ") == 1  # of all ranks one speaks
    return json.loads((out / "report.json").read_text())


FIGURES = ("loss", "auc", "logloss", "index_rows")


def test_the_same_figures_under_both_launchers_and_after_a_resume(options, program, repository, tmp_path, monkeypatch):
    one, whole, parts = (tmp_path / name for name in ("one", "whole", "parts"))
    expected = report_of(python(program, *options, "--out", str(one)), one)
    assert (expected["ranks"], expected["steps"], expected["bytes_sent"]) == (1, 32, 0)
    assert [epoch["rows"] for epoch in expected["epochs"]] == [ROWS, ROWS]
    found = report_of(torchrun(2, program, *options, "--out", str(whole), "--save-every", "20"), whole)
    assert (found["ranks"], found["steps"]) == (2, 32)
    assert found["bytes_sent"] > 100_000
    for mine, theirs in zip(found["epochs"], expected["epochs"], strict=True):
        assert (mine["rows"], mine["evaluation"]["rows"]) == (ROWS, EVAL_ROWS)
        for key in ("auc", "logloss"):
            assert mine["evaluation"][key] == pytest.approx(theirs["evaluation"][key], rel=1e-4)
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert found["index_rows"] == expected["index_rows"]

    broken_off = report_of(mpirun(2, program, *options, "--out", str(parts), "--stop-at", "21"), parts)
    assert (broken_off["steps"], broken_off["epochs"][1]["rows"]) == (21, 5 * BATCH)
    assert sorted(path.name for path in (parts / "checkpoint").glob("*/*")) == ["21", "21"]
    resumed = report_of(mpirun(2, program, *options, "--out", str(parts), "--resume"), parts)
    assert [epoch["rows"] for epoch in resumed["epochs"]] == [ROWS - 5 * BATCH]
    # Sums are in the order of ranks under each launcher, so that even another one gives the same bits.
    assert resumed["epochs"][0]["evaluation"] == found["epochs"][1]["evaluation"]
    assert resumed["steps"] == found["steps"]

    with pytest.raises(CheckpointError, match="holds the rows of rank 0 of 2, and this is rank 0 of 1"):
        run_here(repository, monkeypatch, *options, "--out", str(parts), "--resume")
    with pytest.raises(SystemExit, match="nothing left to train: step 32, which was saved, is the last one"):
        run_here(repository, monkeypatch, *options, "--out", str(one), "--resume")
    assert sorted(path.name for path in (one / "checkpoint").glob("*/*")) == ["32"]


def run_here(repository, monkeypatch, *arguments):
    monkeypatch.syspath_prepend(str(repository / "examples"))
    monkeypatch.setattr(sys, "argv", ["train_ranks.py", *arguments])
    importlib.import_module("train_ranks").main()


def test_what_is_refused(options, repository, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="checkpoint has no step that all of 1 ranks have saved"):
        run_here(repository, monkeypatch, *options, "--out", str(tmp_path), "--resume")
    train_ranks = importlib.import_module("train_ranks")

    class Ranks:
        world_size = 3

    with pytest.raises(SystemExit, match="--batch-size 100 is no multiple of 3 ranks"):
        train_ranks.train(train_ranks.parse([*options, "--out", str(tmp_path)]), Ranks())
    with pytest.raises(SystemExit):
        train_ranks.parse(["--data", "x"])


def test_files_are_generated_where_none_are_given(repository, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(repository / "examples"))
    monkeypatch.setattr(importlib.import_module("train_ranks"), "GENERATED_ROWS", 1000)
    for more in ((), ("--resume", "--epochs", "2")):
        run_here(repository, monkeypatch, "--out", str(tmp_path), "--batch-size", "500", "--dim", "4", *more)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"] == 4
    assert [epoch["evaluation"]["rows"] for epoch in report["epochs"]] == [100]
    assert "report: " in capsys.readouterr().out
