"""The command line: tables for people, stable JSON for programs, errors with exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from headrace import cli_lint
from headrace.cli import main


def invoke(*arguments: object):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "d"
    result = invoke("generate", "criteo-kaggle", "--out", folder, "--rows", 900, "--files", 2, "--json", "-")
    assert result.exit_code == 0, result.output
    return folder, json.loads(result.stdout)


def test_generate_reports_what_it_wrote(generated):
    folder, report = generated
    assert report["rows"] == 900
    assert len(report["files"]) == 2
    assert report["bytes"] == sum((folder / f).stat().st_size for f in report["files"])
    assert 0.5 < report["auc_of_generator"] < 1


def test_generate_tells_of_the_evaluation_part(tmp_path):
    arguments = ("generate", "criteo-kaggle", "--out", tmp_path / "d", "--rows", 50)
    table = invoke(*arguments).stdout
    assert "eval" not in table
    result = invoke(*arguments, "--eval-rows", 20, "--overwrite", "--json", tmp_path / "r.json")
    found = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert (found["rows"], found["eval.rows"], found["eval.files"]) == ("50", "20", "eval_0.txt")
    assert int(found["eval.bytes"]) == (tmp_path / "d" / "eval" / "eval_0.txt").stat().st_size
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["eval"]["rows"], report["parameters"]["eval_rows"]) == (20, 20)
    assert "parameters" not in report["eval"]  # they are those of the whole


def test_tables_are_for_people(generated, tmp_path):
    curve = invoke("replay", generated[0], "--batch-size", 100, "--window", 4, "--curve").stdout
    points = [line for line in curve.splitlines() if line.startswith("curve.points")]
    assert [line.split()[:3] for line in points[:2]] == [
        ["curve.points.1", "share", "0.0100,"],
        ["curve.points.2", "share", "0.0200,"],
    ]
    options = ("--no-features", "--batch-size", 100, "--batches", 5, "--top-rows", 10, "--json", tmp_path / "s.json")
    stats = invoke("stats", generated[0], *options).stdout
    assert len(json.loads((tmp_path / "s.json").read_text())["curve"]) > 30
    assert "values: --json lists them" in stats
    assert "coverage.1           rows 10, accesses 0." in stats
    many = invoke("generate", "criteo-kaggle", "--out", tmp_path / "m", "--rows", 30, "--files", 30).stdout
    assert "30 values, train_0.txt to train_29.txt: --json lists them" in many
    for output in (curve, stats, many):
        assert max(map(len, output.splitlines())) < 200
        assert not set("{}[]") & set(output)


def test_replay_counts_every_row(generated):
    result = invoke("replay", generated[0], "--batch-size", 100, "--window", 4, "--verify-plan", "--json", "-")
    assert result.exit_code == 0, result.output
    stats = json.loads(result.stdout)
    assert (stats["rows"], stats["rows_in"], stats["rows_skipped"], stats["stale_reads"]) == (900, 900, 0, 0)
    assert stats["ids"] == 900 * 26
    assert stats["window"] == 4
    assert 0 < stats["hit_rate"] < 1


def test_replay_prints_a_table_and_writes_json(generated, tmp_path):
    result = invoke("replay", generated[0], "--epochs", 2, "--hot-rows", 5, "--json", tmp_path / "r.json")
    assert result.exit_code == 0, result.output
    assert "unique_share" in result.stdout
    stats = json.loads((tmp_path / "r.json").read_text())
    assert (stats["rows"], stats["r_rows"]) == (1800, 5)


def test_what_was_not_measured_is_a_dash(generated):
    lines = invoke("replay", generated[0], "--batch-size", 500).stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("stale_reads")] == ["-"]


def test_a_reader_of_the_output_may_leave(generated, repository):
    command = [sys.executable, "-m", "headrace", "replay", str(generated[0])]
    with subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(300)) == (b"", 1)


def test_replay_gives_the_curve_of_capacities(generated):
    result = invoke("replay", generated[0], "--batch-size", 100, "--window", 4, "--epochs", 2, "--curve", "--json", "-")
    assert result.exit_code == 0, result.output
    curve = json.loads(result.stdout)["curve"]
    assert (curve["window"], curve["steps"]) == (4, 5)  # of the first epoch's nine batches
    assert [point["share"] for point in curve["points"]] == [0.01, 0.02, 0.05, 0.1, 0.25, 0.5]
    assert curve["points"][0]["rows_needed"] > curve["points"][0]["capacity"]
    unbounded = curve["unbounded"]
    assert unbounded["capacity"] > curve["window_distinct_rows"]
    assert 0 < unbounded["early_share"] < 1
    assert unbounded["hit_rate"] > max(point["hit_rate"] or 0 for point in curve["points"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "{data}", "--curve"], "more than the window's 32 are needed"),
        (["replay", "no-such-file.txt"], "no-such-file.txt"),
        (["replay", "{data}", "--no-labels"], "column"),
        (["replay", "{data}", "--capacity", "3"], "rows"),
        (["replay", "{data}", "--hot-rows", "many"], "hot"),
        (["generate", "criteo-kaggle", "--out", "{data}", "--rows", "5"], "overwrite"),
    ],
)
def test_errors_are_one_line_and_exit_with_1_or_2(generated, arguments, message):
    result = invoke(*[a.format(data=generated[0]) for a in arguments])
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") <= 4


def test_a_lack_of_memory_ends_in_one_line(tmp_path, monkeypatch):
    def run_out(*_, **__):
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(cli_lint, "open_data", run_out)
    result = invoke("lint", tmp_path)
    assert result.exit_code == 1
    assert result.output == "Error: MemoryError: there is not enough memory (std::bad_alloc)\n"
