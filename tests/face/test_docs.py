"""What the documentation of datasets promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from headrace.cli import main
from headrace.formats.datasets import DATASETS
from headrace.formats.schema import Schema


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "datasets.md").read_text()


def test_every_dataset_is_there(page: str) -> None:
    assert sorted(re.findall(r"^\| `([a-z][a-z0-9-]+)` \|", page, re.MULTILINE)) == sorted(DATASETS)


def test_the_commands_have_these_options(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.yaml").write_text("labels: [y]\n")
    lines = [line for line in re.findall(r"headrace ((?:replay|convert|lint) [^`\n]+)", page) if "NAME" not in line]
    assert len(lines) >= 15
    for line in lines:
        name, *arguments = [part.strip("'") for part in line.split()]
        context = main.commands[name].make_context(name, arguments)  # parses, runs nothing
        assert context.params["dataset"] in DATASETS


def test_the_schema_is_one(page: str) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    schema = Schema.from_dict(yaml.safe_load(text))
    assert schema.column_names == ("clk", "price", "item", "history")


def test_the_commands_about_plans_have_these_options(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("schema.yaml", "a.arrow", "b.arrow"):  # files that options name must be there
        (tmp_path / name).write_text("labels: [y]\n")
    text = (repository / "docs" / "plans.md").read_text()
    lines = re.findall(r"^headrace (plan [^#\n]+)", text, re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        name, *arguments = line.split()
        assert main.commands[name].make_context(name, arguments).params["window"] == 32
