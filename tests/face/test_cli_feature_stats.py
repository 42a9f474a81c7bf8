"""`headrace stats` of each column, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli import main

KEYS = {
    "name", "table", "missing", "missing_share", "missing_elements", "ids", "ids_per_row", "cardinality", "seen_once",
    "top_share", "ids_for_share", "coverage", "top_ids",
}  # fmt: skip


def test_json_table_and_plots(shared_data: Path, tmp_path: Path) -> None:
    data = str(shared_data / "taobao_userbehavior" / "fattydelivery_UserBehavior.csv")
    arguments = ["stats", data, "--dataset", "taobao-userbehavior", "--plot-features", str(tmp_path / "plots")]
    result = CliRunner().invoke(main, [*arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["rows"] > 0  # of the hot set's report
    features = report["features"]
    assert features["rows"] == 4321
    assert [f["name"] for f in features["sparse"]] == ["user", "item", "category"]
    assert all(set(f) == KEYS for f in features["sparse"])
    users = {line.split(",")[0] for line in Path(data).read_text().splitlines()}
    assert features["sparse"][0]["cardinality"] == len(users)
    plots = sorted(p.name for p in (tmp_path / "plots").iterdir())
    assert plots == ["coverage-category.png", "coverage-item.png", "coverage-user.png", "coverage.png"]
    assert (tmp_path / "plots" / "coverage.png").read_bytes().startswith(b"\x89PNG")
    table = CliRunner().invoke(main, ["stats", data, "--dataset", "taobao-userbehavior", "--feature-rows", "1000"])
    assert "cardinality" in table.output
    assert "1,000" in table.output
    left_out = CliRunner().invoke(main, ["stats", data, "--dataset", "taobao-userbehavior", "--no-features"])
    assert "cardinality" not in left_out.output


def test_columns_of_several_layouts(tmp_path: Path) -> None:
    data, schema = tmp_path / "UserBehavior.csv", tmp_path / "schema.yaml"
    data.write_text("1,2,3,pv,4\n1,5,3,buy,6\n")
    schema.write_text(
        "labels: [label]\nsparse: [{name: user, encoding: uint64}, {name: item, encoding: uint64}]\n"
        "tables: [{name: user, dim: 4}, {name: item, dim: 8}]\n"
    )
    arguments = ["stats", str(data), "--dataset", "taobao-userbehavior", "--schema", str(schema)]
    result = CliRunner().invoke(main, [*arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert list(report) == ["layouts", "features"]
    assert [f["cardinality"] for f in report["features"]["sparse"]] == [1, 2]
    assert CliRunner().invoke(main, arguments).exit_code == 0


def test_a_dataset_without_ids_has_features_and_is_told_that_it_has_no_hot_set(tmp_path: Path) -> None:
    data, schema = tmp_path / "a.csv", tmp_path / "schema.yaml"
    data.write_text("x\n1\n2\n")
    schema.write_text("dense: [x]\n")
    result = CliRunner().invoke(main, ["stats", str(data), "--dataset", "csv", "--schema", str(schema)])
    assert result.exit_code == 0, result.output
    assert "note: there is no hot set: the schema has no sparse column" in result.stderr


@pytest.mark.parametrize("command", [["stats"], ["plan", "--ranks", "2"], ["bench", "plan"]])
def test_batches_of_a_preset_are_of_a_power_of_two(command: list[str]) -> None:
    told = CliRunner().invoke(main, [*command, "--help"]).output
    assert "of a --preset a power of two up to 65536" in " ".join(told.split())
    refused = CliRunner().invoke(main, [*command, "--preset", "criteo-kaggle", "--batch-size", "200"])
    assert refused.exit_code == 1, refused.output
    assert "batch_size=200 (--batch-size): a generated stream is cut into batches of a power of two" in refused.output
