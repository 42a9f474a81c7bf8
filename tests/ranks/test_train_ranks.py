"""`examples/train_ranks.py`: one program under mpirun, torchrun and as one process, with the same figures."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

import headrace
from headrace.embed.run_folder import CheckpointError
from tests.support.launch import mpirun, torchrun

pytestmark = pytest.mark.timeout(1000)

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
    return read(out)


def read(out):
    return json.loads((out / "report.json").read_text())


def saved(out):
    return sorted(str(path.relative_to(out / "checkpoint")) for path in (out / "checkpoint").glob("*/*"))


def assert_same(epoch, expected):
    """Figures after the same steps, of all ranks and of one process."""
    assert epoch["evaluation"]["rows"] == expected["evaluation"]["rows"] == EVAL_ROWS
    for key in ("auc", "logloss"):
        assert epoch["evaluation"][key] == pytest.approx(expected["evaluation"][key], rel=1e-4)


@pytest.mark.ranks
def test_the_same_figures_under_both_launchers_and_after_a_resume(options, program, repository, tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    run_here(repository, monkeypatch, *options, "--out", str(one))
    expected = read(one)
    assert (expected["ranks"], expected["steps"], expected["bytes_sent"]) == (1, 32, 0)
    assert [epoch["rows"] for epoch in expected["epochs"]] == [ROWS, ROWS]
    assert saved(one) == ["0/32"]

    found = report_of(torchrun(2, program, *options, "--out", str(two), "--save-every", "20", "--stop-at", "21"), two)
    assert (found["ranks"], found["steps"]) == (2, 21)
    assert [epoch["rows"] for epoch in found["epochs"]] == [ROWS, 5 * BATCH]
    assert found["epochs"][0]["loss"] == pytest.approx(expected["epochs"][0]["loss"], rel=1e-4)
    assert_same(found["epochs"][0], expected["epochs"][0])
    assert found["bytes_sent"] > 100_000
    assert saved(two) == ["0/21", "1/21"]

    (two / "checkpoint" / "0" / "25").mkdir()  # as if the job had been killed when one rank alone had saved
    found = report_of(mpirun(2, program, *options, "--out", str(two), "--resume"), two)  # what the others saved
    assert (found["ranks"], found["steps"]) == (2, 32)
    assert [epoch["rows"] for epoch in found["epochs"]] == [ROWS - 5 * BATCH]
    assert_same(found["epochs"][0], expected["epochs"][1])
    assert found["index_rows"] == expected["index_rows"]
    assert saved(two) == ["0/32", "1/32"]

    with pytest.raises(CheckpointError, match="holds the rows of rank 0 of 2, and this is rank 0 of 1"):
        run_here(repository, monkeypatch, *options, "--out", str(two), "--resume")
    with pytest.raises(SystemExit, match="nothing left to train: step 32, which was saved, is the last one"):
        run_here(repository, monkeypatch, *options, "--out", str(one), "--resume")
    assert saved(one) == ["0/32"]


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
