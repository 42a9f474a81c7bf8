"""The code of docs/training.md, training_over_ranks.md, index.md and stage.md, run as it stands there."""

from __future__ import annotations

import importlib
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from tests.support.criteo_text import write_lines


def code_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def run(code: str, **given: Any) -> dict[str, Any]:
    names: dict[str, Any] = dict(given)
    exec(code, names)
    return names


def bits(names: dict[str, Any]) -> list[bytes]:
    arrays = [*names["stage"].state_arrays().values(), *(p.detach().numpy() for p in names["model"].parameters())]
    return [np.asarray(array).tobytes() for array in arrays]


def test_the_loop_goes_on_as_if_it_had_not_been_killed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, _, scoring, schema = code_of(repository / "docs" / "training.md")
    loop = loop.replace("import headrace\n", "import headrace\ntorch.manual_seed(0)\n")
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "train.txt", 24 * 64)
    loop = loop.replace("batch_size=512", "batch_size=64").replace("100_000", "24").replace("dim=16", "dim=4")
    whole = run(loop)  # saves at 10 and 20
    assert (whole["step"], headrace.load_run("run").step) == (24, 20)
    resumed = run(loop)
    assert (resumed["run"].step, resumed["step"]) == (20, 24)
    assert bits(resumed) == bits(whole)
    assert resumed["stage"].lr == whole["stage"].lr < 1e-6  # the schedule's end
    lines = (tmp_path / "train.txt").read_bytes().splitlines(keepends=True)
    (tmp_path / "unlabelled.txt").write_bytes(b"".join(line.split(b"\t", 1)[1] for line in lines[:100]))
    scored = run(scoring.replace("dim=16", "dim=4"), model=whole["model"], torch=torch, headrace=headrace)
    assert scored["scores"].shape == (100,)
    assert run(schema)["clicks"].groups[0].dim == 32


def test_a_loop_over_ranks_its_metrics_and_what_it_saves(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop, metrics, saving = code_of(repository / "docs" / "training_over_ranks.md")
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "day_0.txt", 300)
    write_lines(tmp_path / "held_out.txt", 50, seed=2)
    more = textwrap.indent(metrics + "step = 3\n" + saving, "    ")
    code = (loop + more).replace("day_*.gz", "day_*.txt").replace("4096", "100").replace("dim=16", "dim=4")
    names = run(code)
    assert (names["rows"], len(names["scores"])) == (50, 50)
    assert capsys.readouterr().out == f"auc {names['auc']:.4f} over 50 rows\n"
    assert headrace.load_run("saved/3/0").part == [0, 1]


def test_the_commands_over_ranks_are_taken(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    monkeypatch.syspath_prepend(str(repository / "examples"))
    parse = importlib.import_module("train_ranks").parse
    commands = []
    for name in ("README.md", "docs/training_over_ranks.md"):
        text = (repository / name).read_text().replace("\\\n", " ")
        commands += [
            shlex.split(line, comments=True) for line in re.findall(r"^.*train_ranks\.py(?: .*)?$", text, re.M)
        ]
    assert len(commands) == 7
    for command in commands:
        at = command.index("examples/train_ranks.py")
        assert parse(command[at + 1 :]).batch_size == 2048
        if command[0].endswith("torchrun"):
            assert get_args_parser().parse_args(command[1:]).nproc_per_node == "4"


def test_the_index_alone(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = code_of(repository / "docs" / "index.md")
    names = run(first + "\ncommitted = len(index)\n" + second + "\nuses = index.uses(found.locations)\n")
    group = names["batch"].groups[0]
    assert group.unique_ids[group.query_ids].tolist() == [7, 7, 9, 1, 2, 1]
    assert (names["committed"], len(names["index"]), len(names["other"])) == (4, 3, 3)
    assert names["known"].tolist() == [True, False]
    assert names["uses"].tolist() == [1, 0]
    assert names["stats"].rows == 3


def test_tables_in_and_out_and_rows_by_id(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "train.txt", 8)
    tables, by_id = code_of(repository / "docs" / "stage.md")
    names = run(tables + by_id)
    assert names["rows"].tolist() == np.float32([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]).tolist()
    assert names["ticket"].query_ids["C1"].tolist() == [0, 1, 0]
    again = names["database"].prefetch({"C1": [9]})
    assert (names["database"].pull(again)["C1"] < names["rows"][1:]).all()  # a step of row-wise Adagrad down
