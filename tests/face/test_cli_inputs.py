"""Files that options name: what is wrong with one is a usage error that names the option, before any work."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from headrace.cli import main

RANKS = ("plan", "--preset", "criteo-kaggle", "--ranks", "2")


def invoke(*arguments: object):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((*RANKS, "--links", "{}"), "--links"),
        (("plan", "data.txt", "--schema", "{}"), "--schema"),
        (("replay", "data.txt", "--schema", "{}"), "--schema"),
        (("plan", "--read", "{}"), "--read"),
        (("plan", "--diff", "there.yaml", "{}"), "--diff"),
    ],
)
def test_what_cannot_be_read(arguments, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    closed = tmp_path / "closed.yaml"
    closed.write_text("")
    closed.chmod(0)
    cases = {"none.yaml": "No such file", "folder": "Is a directory", "circle": "Too many levels", "": "No such file"}
    if os.geteuid() != 0:  # root reads it all the same
        cases["closed.yaml"] = "Permission denied"
    for path, why in cases.items():
        result = invoke(*(a.format(path) for a in arguments))
        assert result.exit_code == 2, result.output
        assert f"Error: Invalid value for '{option}': '{path}' cannot be read: {why}" in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ranks_per_node: 0", "links.yaml: ranks_per_node"),
        ("nodes: 3", "links.yaml: a link model: key 'nodes' is unknown; known: ranks_per_node"),
        ("between: {gbit_per_s: -1}", "links.yaml: between: gbit_per_s=-1 is not from 1e-06 to 1e+06"),
        ("a: [", "links.yaml: not plain YAML"),
        ("[1, 2]", "links.yaml: a link model is a mapping"),
    ],
)
def test_what_a_file_of_links_says_wrong(text, message, tmp_path):
    links = tmp_path / "links.yaml"
    links.write_text(text)
    result = invoke(*RANKS, "--links", links)
    assert result.exit_code == 2
    assert f"Error: Invalid value for '--links': {tmp_path}/{message}" in result.output


def test_what_a_schema_says_wrong(tmp_path):
    schema = tmp_path / "schema.yaml"
    schema.write_text("columns: 3")
    result = invoke("lint", "data.txt", "--schema", schema)
    assert result.exit_code == 2
    assert f"Error: Invalid value for '--schema': {schema}: " in result.output
