"""`headrace convert` and `headrace lint`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from headrace.cli import main
from tests.support.criteo_text import write, write_lines


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_convert_then_replay(tmp_path: Path) -> None:
    write_lines(tmp_path / "day_0", 500)
    result = invoke("convert", tmp_path / "day_0", "--out", tmp_path / "out", "--threads", 2, "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["rows_in"], report["rows_out"], report["rows_skipped"], report["files_kept"]) == (500, 500, 0, 0)
    result = invoke("replay", tmp_path / "out", "--dataset", "parquet", "--batch-size", 100, "--json", "-")
    assert json.loads(result.stdout)["rows"] == 500
    again = invoke("convert", tmp_path / "day_0", "--out", tmp_path / "out")
    assert (again.exit_code, "files_kept    1" in again.stdout) == (0, True)
    other = invoke("convert", tmp_path / "day_0", "--out", tmp_path / "out", "--row-group-rows", 7)
    assert "holds a conversion with other row_group_rows (--row-group-rows); give another folder" in other.stderr
    (tmp_path / "out" / "day_0.parquet").unlink()
    again = invoke("convert", tmp_path / "day_0", "--out", tmp_path / "out")
    assert (again.exit_code, "out: day_0.parquet is missing" in again.stderr) == (1, True)
    assert invoke("convert", tmp_path / "day_0", "--out", tmp_path / "out", "--overwrite").exit_code == 0


def test_what_was_converted_is_read_with_the_schema_of_the_conversion(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "taobao_userbehavior" / "fattydelivery_UserBehavior.csv"
    assert invoke("convert", path, "--dataset", "taobao-userbehavior", "--out", tmp_path / "a").exit_code == 0
    again = invoke("convert", tmp_path / "a", "--dataset", "parquet", "--to", "tar", "--out", tmp_path / "b")
    assert again.exit_code == 0, again.output
    for folder, dataset in (("a", "parquet"), ("b", "tar")):
        result = invoke("replay", tmp_path / folder, "--dataset", dataset, "--json", "-")
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert (report["rows"], report["ids"], report["index_rows"]) == (4321, 3 * 4321, 3886)


def test_a_history_that_is_not_there_is_made_by_the_command_of_the_error(tmp_path: Path) -> None:
    (tmp_path / "my logs").mkdir()
    path = write(tmp_path / "my logs" / "UserBehavior.csv", b"1,2,3,pv,1511544070\n1,4,3,buy,1511544080\n")
    replay = ("replay", path, "--dataset", "taobao-userbehavior-history", "--json", "-")
    refused = invoke(*replay)
    _, _, command = refused.stderr.strip().partition("make one with headrace ")
    assert refused.exit_code == 1
    assert invoke(*shlex.split(command)).exit_code == 0
    assert json.loads(invoke(*replay).stdout)["rows"] == 2


def test_overwrite_does_what_the_error_says(tmp_path: Path) -> None:
    write_lines(tmp_path / "day_0", 5)
    convert = ("convert", tmp_path / "day_0", "--out", tmp_path / "out")
    assert invoke(*convert).exit_code == 0
    assert "overwrite=True (--overwrite)" in (again := invoke(*convert, "--row-group-rows", 2)).stderr
    assert (again.exit_code, invoke(*convert, "--row-group-rows", 2, "--overwrite").exit_code) == (1, 0)


def test_convert_ends_with_an_error_code(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"bad\n")
    result = invoke("convert", path, "--out", tmp_path / "out")
    assert (result.exit_code, "x, line 1" in result.stderr, "Traceback" in result.stderr) == (1, True, False)


def test_lint(tmp_path: Path) -> None:
    write_lines(tmp_path / "good", 20)
    result = invoke("lint", tmp_path / "good")
    assert (result.exit_code, "clean" in result.stdout) == (0, True)
    write(tmp_path / "bad", (tmp_path / "good").read_bytes() + b"bad\n" * 3)
    result = invoke("lint", tmp_path / "bad", "--max-problems", 2)
    assert result.exit_code == 1
    assert "line 21: b'bad': 1 columns where the schema declares 40" in result.stdout
    assert "line 23" not in result.stdout
    result = invoke("lint", tmp_path / "bad", "--json", "-")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["bad_records"], found["rows"], found["clean"]) == (1, 3, 23, False)
    assert [p["line"] for p in found["problems"]] == [21, 22, 23]


def test_lint_lists_what_is_wrong_with_a_folder_and_reads_its_files(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for day in range(3):
        write_lines(tmp_path / "raw" / f"day_{day}", 20, seed=day)
    out = tmp_path / "out"
    assert invoke("convert", tmp_path / "raw", "--out", out).exit_code == 0
    options = ("--dataset", "parquet", "--json", "-")

    def lint(*arguments: Any) -> dict[str, Any]:
        result = invoke("lint", *arguments)
        assert (result.exit_code, result.stderr) == (1, "")
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    (out / "day_1.parquet").rename(tmp_path / "day_1.parquet")
    found = lint(out, *options)
    assert [(p["kind"], "day_1.parquet" in p["message"]) for p in found["problems"]] == [("ManifestError", True)]
    assert (found["files"], found["rows"], found["bad_files"], found["clean"]) == (2, 40, 1, False)
    (tmp_path / "day_1.parquet").rename(out / "day_1.parquet")
    (out / "more.parquet").write_bytes((out / "day_0.parquet").read_bytes())
    assert "'more.parquet'" in lint(out, *options)["problems"][0]["message"]
    (out / "more.parquet").unlink()
    (out / "day_0.parquet").write_bytes(b"PAR1")
    assert [p["kind"] for p in lint(out, *options)["problems"]] == ["ManifestError"]
    (tmp_path / "raw" / "manifest.json").write_text("{")  # one that cannot be read at all
    for paths in (tmp_path / "raw", [tmp_path / "raw" / "day_0", tmp_path / "raw" / "day_1"]):
        found = lint(*(paths if isinstance(paths, list) else [paths]), "--json", "-")
        assert [p["kind"] for p in found["problems"]] == ["ManifestError"]
        assert found["rows"] == 20 * found["files"] > 0


def test_lint_of_another_dataset(shared_data: Path) -> None:
    result = invoke("lint", shared_data / "avazu" / "wideresdnn_train.csv", "--dataset", "avazu")
    assert result.exit_code == 0, result.output
    result = invoke("lint", shared_data / "avazu" / "wideresdnn_train.csv", "--dataset", "criteo-csv")
    assert (result.exit_code, "ColumnMismatchError" in result.stdout) == (1, True)
