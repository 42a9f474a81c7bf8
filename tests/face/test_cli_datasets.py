"""`headrace replay --dataset NAME` over files of each public dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.formats.generate.generate import generate


def replay(*arguments: Any) -> dict[str, Any]:
    options = ["--batch-size", "512", "--window", "2", "--hot-rows", "0", "--verify-plan", "--json", "-"]
    result = CliRunner().invoke(main, ["replay", *map(str, arguments), *options])
    assert result.exit_code == 0, result.output
    stats: dict[str, Any] = json.loads(result.stdout)
    assert (stats["rows_skipped"], stats["stale_reads"]) == (0, 0)
    return stats


@pytest.mark.parametrize(
    ("dataset", "file", "rows", "ids_per_row"),
    [
        ("criteo-kaggle", "criteo_kaggle/wideresdnn_dev.tsv", 409, 26),
        ("criteo-terabyte", "criteo_terabyte/day_11_first_3k_rows_original.tsv", 3000, 26),
        ("criteo-csv", "criteo_kaggle/deepctr_criteo_sample.txt", 200, 26),
        ("criteo-csv", "criteo_kaggle/ycjuan_train.tiny.csv", 1999, 26),
        ("taobao-userbehavior", "taobao_userbehavior/fattydelivery_UserBehavior.csv", 4321, 3),
        ("avazu", "avazu/wideresdnn_train.csv", 8087, 24),
        ("ali-ccp", "ali_ccp/torchrechub_ali_ccp_train.csv", 100, 23),
    ],
)
def test_real_samples(shared_data: Path, dataset: str, file: str, rows: int, ids_per_row: int) -> None:
    stats = replay(shared_data / file, "--dataset", dataset)
    assert (stats["rows"], stats["rows_in"], stats["ids"]) == (rows, rows, rows * ids_per_row)


@pytest.mark.parametrize(
    ("separator", "options"), [(",", ()), (";", ("--separator", ";")), ("\t", ("--separator", "tab"))]
)
def test_text_of_ones_own_by_every_command(tmp_path: Path, separator: str, options: tuple[str, ...]) -> None:
    rows = [("shop", "clk", "item"), (7, 0, 5), (8, 1, 6), (7, 1, 5)]
    path = tmp_path / "own.csv"
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows))
    schema = tmp_path / "schema.yaml"
    schema.write_text("labels: [clk]\nsparse: [{name: item, encoding: uint64}]\n")
    own = (path, "--dataset", "csv", "--schema", schema, *options)
    assert replay(*own)["index_rows"] == 2
    for command in (("lint",), ("stats",), ("plan",), ("convert", "--out", tmp_path / "out")):
        result = CliRunner().invoke(main, [str(word) for word in (command[0], *own, *command[1:])])
        assert result.exit_code == 0, (command, result.output)
    assert pq.read_table(tmp_path / "out" / "own.parquet").to_pydict() == {"clk": [0, 1, 1], "item": [5, 6, 5]}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--dataset", "csv"), 1, "dataset 'csv' has no schema of its own: give one (schema=, --schema)"),
        (("--dataset", "avazu", "--separator", ";"), 2, "--separator is for --dataset csv, not avazu"),
        (("--dataset", "csv", "--separator", ";;", "--schema", "SCHEMA"), 1, "is not one ASCII character"),
    ],
)
def test_text_of_ones_own_that_nobody_can_read(
    tmp_path: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "own.csv").write_text("clk\n1\n")
    (tmp_path / "schema.yaml").write_text("labels: [clk]\n")
    arguments = [str(tmp_path / "schema.yaml") if word == "SCHEMA" else word for word in options]
    result = CliRunner().invoke(main, ["lint", str(tmp_path / "own.csv"), *arguments])
    assert (result.exit_code, message in result.stderr) == (code, True), result.output


def test_parquet_with_a_schema_of_its_own(tmp_path: Path) -> None:
    pq.write_table(pa.table({"clk": [0, 1, 1], "item": [5, 6, 5], "tags": [[1, 2], [], [3]]}), tmp_path / "x.parquet")
    schema = tmp_path / "schema.yaml"
    schema.write_text(
        "labels: [clk]\nsparse:\n- {name: item, encoding: uint64}\n- {name: tags, encoding: uint64, multi_hot: true}\n"
    )
    stats = replay(tmp_path / "x.parquet", "--dataset", "parquet", "--schema", schema)
    assert (stats["rows"], stats["ids"]) == (3, 6)


def test_a_file_of_another_dataset_ends_in_one_line(shared_data: Path) -> None:
    path = shared_data / "avazu" / "wideresdnn_train.csv"
    result = CliRunner().invoke(main, ["replay", str(path), "--dataset", "criteo-csv"])
    assert result.exit_code == 1
    assert "column 'label or Label'" in result.stderr
    assert "Traceback" not in result.stderr


def test_splits_of_generated_criteo_files(tmp_path: Path) -> None:
    generate("criteo-kaggle", tmp_path / "k", rows=1000, files=3, seed=1)
    # 1000 = 7 * 142 + 6: six parts of 143, one of 142
    for split, rows in (("train", 858), ("test", 71), ("validation", 71)):
        assert replay(tmp_path / "k", "--split", split)["rows"] == rows
    generate("criteo-terabyte", tmp_path / "t", rows=99, files=3, seed=1)
    for convention, split, rows in (("torchrec", "validation", 17), ("torchrec", "test", 16), ("dlrm-v1", "test", 17)):
        options = ["--dataset", "criteo-terabyte", "--split", split, "--convention", convention]
        assert replay(tmp_path / "t", *options)["rows"] == rows
    days = [tmp_path / "t" / f"day_{day}" for day in (2, 0, 1)]  # in any order: the names say which is the last
    assert replay(*days, "--dataset", "criteo-terabyte", "--split", "train")["rows"] == 66
    options = ["--dataset", "criteo-terabyte", "--split", "test", "--convention", "torchrec", "--digest"]
    digests = [replay(*paths, *options)["batches_digest"] for paths in ([tmp_path / "t"], days)]
    assert digests[0] == digests[1]
    result = CliRunner().invoke(
        main, ["replay", str(tmp_path / "t"), "--dataset", "criteo-terabyte", "--split", "test"]
    )
    assert (result.exit_code, "say which convention" in result.stderr) == (1, True)
