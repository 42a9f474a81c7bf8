"""`headrace plan --ranks`, and what `headrace stats` tells about the most accessed rows."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from headrace.cli import main
from headrace.formats.generate.generate import generate
from headrace.ingest.plan.simulation.links import DEFAULT_LINKS, LinkModel


def invoke(*arguments: object):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def report_of(*arguments: object) -> dict:
    result = invoke(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "d"
    generate("criteo-kaggle", str(folder), rows=2000, files=2, seed=3)
    return folder


RANKS = ("--ranks", "2,8", "--steps", 3, "--batch-size", 32, "--dim", 16, "--window", 2)


def test_files_and_the_stream_that_they_hold_give_the_same_report(data, tmp_path) -> None:
    table, picture = tmp_path / "t.arrow", tmp_path / "p.png"
    files = report_of("plan", data, *RANKS, "--out", table, "--plot", picture)
    stream = report_of("plan", "--preset", "criteo-kaggle", "--seed", 3, *RANKS, "--num-workers", 1)
    assert files["worlds"] == stream["worlds"]
    assert [world["ranks"] for world in files["worlds"]] == [2, 8]
    assert {world["steps"] for world in files["worlds"]} == {3}
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = pa.ipc.open_file(str(table)).read_all()
    assert rows.num_rows == 8 * 3 * (2 + 8)
    first = files["worlds"][0]["strategies"]["no_r_flat"]
    mine = rows.slice(0, 6).to_pydict()
    assert set(mine["strategy"]) == {"no_r_flat"}
    assert sum(mine["all_to_all_bytes"]) / 6 == pytest.approx(first["all_to_all_bytes"])
    shown = invoke("plan", data, *RANKS)
    assert "8 ranks on 1 node, 3 steps" in shown.stdout
    assert "touched_two_level" in shown.stdout


def test_short_files_give_the_steps_that_they_have(data) -> None:
    # 2,000 rows are 62 batches of 32: 15 steps of four ranks, of which the first and the last are neighbours only
    report = report_of("plan", data, "--ranks", 4, "--batch-size", 32, "--steps", 100)
    assert (report["worlds"][0]["steps"], report["trace_batches"]) == (13, 62)


def test_links_are_read_from_a_file(data, tmp_path) -> None:
    links = tmp_path / "links.yaml"
    links.write_text("ranks_per_node: 2\nbetween: {gbit_per_s: 1}\n")
    slow = report_of("plan", data, *RANKS, "--links", links)
    assert slow["links"]["between"] == {"gbit_per_s": 1, "latency_us": 10.0, "message_us": 1.0}
    assert [world["nodes"] for world in slow["worlds"]] == [1, 4]
    strategies = slow["worlds"][1]["strategies"]
    assert strategies["no_r_two_level"]["between_bytes_a_node"] < strategies["no_r_flat"]["between_bytes_a_node"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--ranks", "2"], "give DATA or --preset"),
        (["plan", "{data}", "--ranks", "2", "--preset", "criteo-kaggle"], "give DATA or --preset"),
        (["plan", "--preset", "criteo-kaggle", "--dataset", "avazu", "--ranks", "2"], "--preset has none"),
        (["plan", "{data}", "--ranks", "2,2"], "a number twice"),
        (["plan", "{data}", "--ranks", "0"], "0 is not in the range"),
        (["plan", "{data}", "--ranks", "2", "--capacity", "5"], "are for one rank"),
        (["plan", "{data}", "--preset", "criteo-kaggle"], "--preset: for --ranks"),
        (["plan", "{data}", "--seed", "1", "--links", "{data}/links.yaml"], "links.yaml"),
        (["plan", "{data}", "--ranks", "2", "--schema", "{data}/none.yaml"], "none.yaml"),
        (["plan", "{data}", "--ranks", "12", "--batch-size", "8"], "12 ranks do not fill nodes of 8"),
        (["plan", "{data}", "--ranks", "8", "--batch-size", "2000"], "take 24 batches of 2000 rows; there are 1"),
        (["plan", "{data}", "--ranks", "8", "--batch-size", "3000"], "not one whole batch"),
        (["plan", "--preset", "criteo-kaggle", "--ranks", "2", "--batch-size", "100"], "power of two"),
        (["plan", "{data}", "--ranks", "2", "--links", "{data}/none.yaml"], "none.yaml"),
        (["stats"], "give DATA or --preset"),
    ],
)
def test_errors_say_what_is_wrong(data, arguments, message) -> None:
    result = invoke(*(a.format(data=data) for a in arguments))
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_stats_tell_what_the_most_accessed_rows_cover(data) -> None:
    options = ("--batch-size", 64, "--batches", 20, "--top-rows", 100, "--top-rows", 1000)
    files = report_of("stats", data, *options)["coverage"]
    stream = report_of("stats", "--preset", "criteo-kaggle", "--seed", 3, *options)["coverage"]
    assert [found["rows"] for found in files] == [100, 1000]
    for ours, law in zip(files, stream, strict=True):
        assert ours == {key: law[key] for key in ours}
        assert ours["unique_rows"] < ours["accesses"]
        assert abs(ours["held_out_accesses"] - law["law_accesses"]) < 0.1
    assert "coverage" in report_of("stats", data, "--batch-size", 64)
    none_left = report_of("stats", data, "--batch-size", 64, "--batches", 31, "--held-out", 0, "--top-rows", 10)
    assert none_left["coverage"][0]["held_out_accesses"] is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "batches", "accesses", "unique_rows"),
    [
        ("criteo-kaggle", 400, 0.90, 0.45),
        ("criteo-terabyte", 400, 0.96, 0.68),
        ("taobao-userbehavior", 1000, 0.86, None),
    ],
)
def test_published_coverage(preset, batches, accesses, unique_rows) -> None:
    (found,) = report_of("stats", "--preset", preset, "--batches", batches)["coverage"]
    assert found["accesses"] >= accesses
    if unique_rows is not None:
        assert found["law_unique_rows"] == pytest.approx(unique_rows, abs=0.005)
        assert found["unique_rows"] == pytest.approx(unique_rows, abs=0.015)


def test_the_commands_of_the_page_have_these_options(repository) -> None:
    page = (repository / "docs" / "ranks.md").read_text()
    lines = re.findall(r"headrace ((?:plan|stats) --[^`\n]+)", page)
    assert len(lines) >= 4
    for line in lines:
        name, *arguments = line.split()
        arguments = [a for a in arguments if a not in ("--links", "links.yaml")]  # read where it is parsed
        assert main.commands[name].make_context(name, arguments).params["preset"]
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert LinkModel.from_dict(yaml.safe_load(text)) == DEFAULT_LINKS
