"""`headrace bench decode` and `bench loader`: their keys, and that their figures are of the rows they say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.bench_files import head_of
from headrace.cli import main
from headrace.formats.bench_peers import inflate, read_by_pyarrow_csv, read_by_python_csv
from headrace.formats.criteo import criteo_schema
from headrace.formats.generate.generate import generate


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "day"
    generate("criteo-terabyte", folder, rows=3000, files=2, seed=1, max_cardinality=1000)
    return folder


def bench(*options: object) -> dict:
    result = CliRunner().invoke(main, ["bench", *(str(o) for o in options), "--rounds", "1", "--json", "-"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_decode_measures_threads_gzip_inflate_and_peers(text: Path, tmp_path: Path):
    report = bench("decode", "--data", text, "--threads", "1,2", "--work", tmp_path)
    assert report["rows"] == 3000
    assert report["bytes"] == sum(p.stat().st_size for p in text.glob("day_*"))
    assert set(report["mb_per_s"]) == {"1", "2"}
    assert set(report["peers"]) == set(report["times_peer"]) == {"pyarrow_csv", "python_csv"}
    assert report["rows_per_s"] == pytest.approx(report["mb_per_s"]["1"] * 1e6 * 3000 / report["bytes"])
    assert report["times_peer"]["python_csv"] == pytest.approx(report["mb_per_s"]["1"] / report["peers"]["python_csv"])
    assert report["gz_to_inflate"] == pytest.approx(report["gz_mb_per_s"] / report["inflate_mb_per_s"])
    assert list(tmp_path.iterdir()) == []  # the copies are gone


def test_decode_generates_rows_and_leaves_peers_out(tmp_path: Path):
    report = bench("decode", "--rows", 2000, "--threads", 1, "--no-peers", "--work", tmp_path)
    assert (report["rows"], report["peers"], report["scaling"]) == (2000, {}, {})
    assert list(tmp_path.iterdir()) == []


def test_loader_measures_the_same_rows_in_three_formats(text: Path):
    report = bench("loader", "--data", text, "--batch-size", 256, "--window", 4)
    assert report["rows"] == 3000
    assert list(report["rows_per_s"]) == ["tsv", "tsv_gz", "parquet"]
    assert all(rate > 0 for rate in report["rows_per_s"].values())
    assert {"raw_blocks", "ReadRows", "Index", "PlanWindow"} <= set(report["stage_share"])
    assert sum(report["stage_share"].values()) == pytest.approx(1)
    assert report["stage_share"] == report["stage_shares"]["tsv"]
    assert report["peak_rss_bytes"] > 50e6
    assert 0 < report["index_rows"] <= 3000 * 26


def test_loader_measures_the_formats_that_are_asked_for(text: Path):
    report = bench("loader", "--data", text, "--formats", "parquet", "--window", 0)
    assert list(report["rows_per_s"]) == list(report["stage_shares"]) == ["parquet"]


def test_packed_text_is_refused(tmp_path: Path):
    (tmp_path / "day_0.gz").write_bytes(b"")
    result = CliRunner().invoke(main, ["bench", "decode", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "day_0.gz: give uncompressed text" in result.output


def test_peers_read_all_rows(text: Path, tmp_path: Path):
    path, schema = str(text / "day_0"), criteo_schema()
    assert read_by_pyarrow_csv(path, schema) == read_by_python_csv(path, schema) == 1500
    result = CliRunner().invoke(main, ["generate", "criteo-terabyte", "--out", str(tmp_path / "z"), "--rows", "100",
                                       "--compression", "gzip"])  # fmt: skip
    assert result.exit_code == 0
    gz = str(next((tmp_path / "z").glob("*.gz")))
    assert inflate(gz) == len(gzip.decompress(Path(gz).read_bytes()))


def test_the_head_of_a_file_is_whole_lines(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"11\n222\n3\n")
    assert Path(head_of(str(path), 5, tmp_path)).read_bytes() == b"11\n"
    assert Path(head_of(str(path), 2, tmp_path)).read_bytes() == b"11\n"
    assert Path(head_of(str(path), 100, tmp_path)).read_bytes() == b"11\n222\n3\n"
