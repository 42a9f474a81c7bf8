"""Raw to Parquet and back: the same rows; what is counted, what is refused, what survives a kill."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from headrace.formats.arrow_reader import ArrowFiles
from headrace.formats.convert import ConversionError, convert
from headrace.formats.criteo import criteo_schema
from headrace.formats.datasets import open_dataset
from headrace.formats.errors import BadRecordError, ManifestError
from headrace.formats.generate.generate import generate
from headrace.formats.manifest import read_manifest
from headrace.formats.schema import Schema, Sparse
from tests.support.criteo_text import rows_of, write, write_lines
from tests.support.killed_removal import killed_at_removal

SCHEMA = Schema(sparse=(Sparse(name="a"), Sparse(name="b", encoding="uint64")))


def read_all(reader: Any) -> list[Any]:
    return rows_of([reader.settle(reader.decode(block)) for block in reader.raw_blocks()])


def small(folder: Path, *texts: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for i, text in enumerate(texts):
        write(folder / f"day_{i}", text)
    return folder


def run(folder: Path, out: Path, **options: Any) -> Any:
    return convert("criteo-kaggle", folder, out, schema=SCHEMA, **options)


@pytest.mark.parametrize(
    ("dataset", "file", "rows"),
    [
        ("criteo-kaggle", "criteo_kaggle/wideresdnn_dev.tsv", 409),
        ("criteo-terabyte", "criteo_terabyte/day_11_first_3k_rows_original.tsv", 3000),
        ("criteo-csv", "criteo_kaggle/deepctr_criteo_sample.txt", 200),
        ("taobao-userbehavior", "taobao_userbehavior/fattydelivery_UserBehavior.csv", 4321),
        ("avazu", "avazu/ycjuan_tr.rx.csv", 2994),
    ],
)
def test_real_samples_have_the_same_rows_after(
    shared_data: Path, tmp_path: Path, dataset: str, file: str, rows: int
) -> None:
    report = convert(dataset, shared_data / file, tmp_path, row_group_rows=1000)
    assert (report.rows_in, report.rows_out, report.rows_skipped, report.files_kept) == (rows, rows, 0, 0)
    raw = open_dataset(dataset, shared_data / file)
    converted = ArrowFiles(tmp_path, raw.schema)
    assert [row[2:] for row in read_all(converted)] == [row[2:] for row in read_all(raw)]
    assert converted.num_rows == rows
    (target,) = report_files(tmp_path)
    assert target == Path(file).with_suffix("").name.removesuffix(".txt") + ".parquet"
    assert pq.ParquetFile(tmp_path / target).metadata.num_row_groups == -(-rows // 1000)


def report_files(folder: Path) -> list[str]:
    manifest = read_manifest(folder)
    assert manifest is not None
    return list(manifest.files)


def test_binary_forms_convert_too(tmp_path: Path) -> None:
    hot = [{"0": 3}.get(str(j), 1) for j in range(26)]
    np.save(tmp_path / "day_0_labels.npy", np.ones((4, 1), np.int32))
    np.save(tmp_path / "day_0_dense.npy", np.ones((4, 13), np.float32))
    ids = {str(j): np.arange(4 * h, dtype=np.int32).reshape(4, h) for j, h in enumerate(hot)}
    np.savez(tmp_path / "day_0_sparse_multi_hot.npz", **ids)
    assert convert("criteo-dcnv2-npz", tmp_path, tmp_path / "out").rows_out == 4
    raw = open_dataset("criteo-dcnv2-npz", tmp_path)
    assert read_all(ArrowFiles(tmp_path / "out", raw.schema)) == read_all(raw)
    np.save(tmp_path / "day_0_labels.npy", np.zeros((4, 1), np.int32))  # a sibling counts as source, too
    with pytest.raises(FileExistsError, match="other sources"):
        convert("criteo-dcnv2-npz", tmp_path, tmp_path / "out")


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    folder = small(tmp_path / "in", b"1\t1\nbad\n2\t2\n", b"", b"bad\n")
    report = run(folder, tmp_path / "out", bad_records="skip")
    assert (report.rows_in, report.rows_out, report.rows_skipped) == (4, 2, 2)
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert {name: entry.rows for name, entry in manifest.files.items()} == {
        "day_0.parquet": 2,
        "day_1.parquet": 0,
        "day_2.parquet": 0,
    }
    expected = {"source": "day_0", "rows_in": 3, "rows_skipped": 1, "rows_out": 2, "bytes_in": 12}
    assert manifest.results["files"]["day_0.parquet"] == expected
    assert [row[2:] for row in read_all(ArrowFiles(tmp_path / "out", SCHEMA))] == [(1, 1), (2, 2)]


def test_an_error_names_the_line_and_leaves_what_was_finished(tmp_path: Path) -> None:
    folder = small(tmp_path / "in", b"1\t1\n", b"2\t2\nbad\n", b"3\t3\n")
    with pytest.raises(BadRecordError, match=r"day_1, line 2"):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").glob("*.partial"))
    write(folder / "day_1", b"2\t2\n")
    for options in ({"compression": "none"}, {"bad_records": "skip"}):  # goes on with the same arguments only
        with pytest.raises(FileExistsError, match=r"day_0\.parquet: is there, but was not made from .* as it is now"):
            run(folder, tmp_path / "out", **options)
    report = run(folder, tmp_path / "out")
    assert (report.files, report.rows_out) == (3, 3)
    assert report.files_kept >= 1
    assert sorted(os.listdir(tmp_path / "out")) == [
        "day_0.parquet", "day_1.parquet", "day_2.parquet", "manifest.json",
    ]  # fmt: skip


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing(tmp_path: Path, threads: int) -> None:
    (tmp_path / "in").mkdir()
    for i in range(4):
        write_lines(tmp_path / "in" / f"day_{i}", 300 + i, seed=i)
    for name, number in (("one", 1), ("many", threads)):
        convert("criteo-terabyte", tmp_path / "in", tmp_path / name, threads=number, row_group_rows=128)
    for i in range(4):
        name = f"day_{i}.parquet"
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    folder = small(tmp_path / "in", b"1\t1\n", b"2\t2\n")
    run(folder, tmp_path / "out")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    report = run(folder, tmp_path / "out")
    assert (report.files, report.files_kept, report.rows_out) == (2, 2, 2)
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before


def test_stale_or_foreign_outputs_are_refused(tmp_path: Path) -> None:
    folder, out = small(tmp_path / "in", b"1\t1\n", b"2\t2\n"), tmp_path / "out"
    run(folder, out)
    with pytest.raises(FileExistsError, match="a conversion with other compression"):
        run(folder, out, compression="none")
    with pytest.raises(FileExistsError, match="a conversion with other schema"):
        convert("criteo-kaggle", folder, out, schema=Schema(sparse=SCHEMA.sparse[::-1]))
    write(folder / "day_1", b"3\t3\n")
    with pytest.raises(FileExistsError, match="a conversion with other sources"):
        run(folder, out)
    assert run(folder, out, overwrite=True).files_kept == 0
    assert [row[3] for row in read_all(ArrowFiles(out, SCHEMA))] == [1, 3]
    (out / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"holds 'notes\.txt'"):
            run(folder, out, overwrite=overwrite)
        assert len(os.listdir(out)) == 4  # and nothing is removed
    (out / "notes.txt").unlink()
    run(folder, out, overwrite=True)
    generate("taobao-userbehavior", tmp_path / "g", rows=5)
    with pytest.raises(FileExistsError, match="was not written by headrace convert"):
        run(folder, tmp_path / "g", overwrite=True)


def test_what_an_interrupted_run_over_other_files_left_is_refused(tmp_path: Path) -> None:
    folder, out = small(tmp_path / "in", b"1\t1\n", b"2\t2\n", b"bad\n"), tmp_path / "out"
    with pytest.raises(BadRecordError):
        run(folder, out)
    assert sorted(p.name for p in out.glob("*.parquet")) == ["day_0.parquet", "day_1.parquet"]
    with pytest.raises(FileExistsError, match=r"holds 'day_1\.parquet', which an interrupted conversion of other"):
        run(folder / "day_0", out)  # else the finished folder would hold a file that its manifest does not know
    assert run(folder / "day_0", out, overwrite=True).files == 1
    assert len(read_all(ArrowFiles(out, SCHEMA))) == 1


@pytest.mark.parametrize("complete", [True, False])
def test_an_overwrite_that_was_killed_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    folder, out = small(tmp_path / "in", b"1\t1\n", b"2\t2\n", *([] if complete else [b"bad\n"])), tmp_path / "out"
    came = 0
    for number in range(20):
        with contextlib.suppress(BadRecordError):
            run(folder, out, overwrite=True)
        if not killed_at_removal(monkeypatch, number, lambda: run(folder / "day_0", out, overwrite=True)):
            break
        came += 1
        with contextlib.suppress(FileExistsError, ManifestError):  # refused, or right
            run(folder / "day_0", out)
            assert [row[3] for row in read_all(ArrowFiles(out, SCHEMA))] == [1]
        assert run(folder / "day_0", out, overwrite=True).files == 1
        assert [row[3] for row in read_all(ArrowFiles(out, SCHEMA))] == [1]
        assert sorted(os.listdir(out)) == ["day_0.parquet", "manifest.json"]
    assert came >= (3 if complete else 4)  # two files, with a manifest or two records


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_not_written_over_its_own_sources(tmp_path: Path, overwrite: bool) -> None:
    out = tmp_path / "out"
    run(small(tmp_path / "in", b"1\t1\n"), out)
    (tmp_path / "link").symlink_to(out, target_is_directory=True)
    (tmp_path / "one.parquet").symlink_to(out / "day_0.parquet")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    for paths, target in (
        (out, out),
        (tmp_path / "link", out),
        (out, tmp_path / "link"),
        (tmp_path / "one.parquet", out),
    ):
        with pytest.raises(FileExistsError, match=r"holds .*, which is to be read; give another folder"):
            convert("parquet", paths, target, overwrite=overwrite)
    with pytest.raises(FileExistsError, match="which is to be read"):
        convert("parquet", f"file://{out}/day_0.parquet", out, overwrite=overwrite)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_a_complete_folder_that_lost_a_file(tmp_path: Path) -> None:
    folder, out = small(tmp_path / "in", b"1\t1\n", b"2\t2\n"), tmp_path / "out"
    run(folder, out)
    (out / "day_1.parquet").unlink()
    with pytest.raises(ManifestError, match=r"day_1\.parquet is missing; overwrite=True makes the folder anew"):
        run(folder, out)
    assert run(folder, out, overwrite=True).rows_out == 2


def test_a_file_that_nobody_recorded_is_not_replaced(tmp_path: Path) -> None:
    folder, out = small(tmp_path / "in", b"1\t1\n"), tmp_path / "out"
    out.mkdir()
    (out / "day_0.parquet").write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="was not made from"):
            run(folder, out, overwrite=overwrite)
    assert (out / "day_0.parquet").read_bytes() == b"mine"


def test_an_output_that_changed_is_seen(tmp_path: Path) -> None:
    folder, out = small(tmp_path / "in", b"1\t1\n" * 100), tmp_path / "out"
    run(folder, out)
    path = out / "day_0.parquet"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FileExistsError, match="changed since it was converted"):
        run(folder, out)
    with pytest.raises(ManifestError, match="BLAKE2b"):
        read_all(ArrowFiles(out, SCHEMA, verify_manifest="full"))
    path.write_bytes(bytes(data[:-1]))
    with pytest.raises(ManifestError, match="cut, or changed since"):
        read_all(ArrowFiles(out, SCHEMA))
    with pytest.raises(ManifestError, match="cut, or changed since"):
        run(folder, out)


def test_sources_that_would_share_a_name(tmp_path: Path) -> None:
    small(tmp_path / "in", b"1\t1\n")
    write(tmp_path / "in" / "day_0.gz", b"1\t1\n")
    with pytest.raises(ConversionError, match=r"would both become day_0\.parquet"):
        run(tmp_path / "in", tmp_path / "out")


def test_what_is_refused_at_once(tmp_path: Path) -> None:
    folder = small(tmp_path / "in", b"1\t1\n")
    for options in ({"compression": "lzma"}, {"threads": 0}, {"row_group_rows": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            run(folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


PROGRAM = """
import os, signal, sys
from headrace.formats import convert, convert_folder, parquet_output

for at, (owner, name, call) in enumerate([
    (parquet_output.ParquetOutput, "_write_group", 1),
    (parquet_output.ParquetOutput, "_write_group", 20),
    (convert_folder, "write_atomic", 3),
    (parquet_output.ParquetOutput, "publish", 3),
    (convert, "sync_folder", 3),
    (convert_folder, "write_manifest", 1),
    (convert_folder.ConversionFolder, "_remove", 2),
]):
    if (child := os.fork()) == 0:
        original, calls = getattr(owner, name), []

        def killed(*args, **kwargs):
            calls.append(name)
            if len(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(owner, name, killed)
        convert.convert("criteo-kaggle", sys.argv[1], f"{sys.argv[2]}/{at}", row_group_rows=100)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, (name, "was not reached")
"""


def test_a_killed_run_is_continued(tmp_path: Path, repository: Path) -> None:
    # P80: preprocessing that restarts from zero. Killed before a first byte, in the middle of a file, before and after
    # a file's record, before its folder is flushed, before and after the manifest
    (tmp_path / "in").mkdir()
    for i in range(6):
        write_lines(tmp_path / "in" / f"train_{i}.txt", 500, seed=i)
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "in"), str(tmp_path)], env=environment, check=True, timeout=100
    )
    convert("criteo-kaggle", tmp_path / "in", tmp_path / "whole", row_group_rows=100)
    expected = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    for at, kept in enumerate([0, 3, 2, 2, 3, 6, 6]):
        out = tmp_path / str(at)
        files = {p.name: p.stat().st_ino for p in out.glob("*.parquet")}
        assert len(files) == kept
        report = convert("criteo-kaggle", tmp_path / "in", out, row_group_rows=100)
        assert (report.files, report.files_kept, report.rows_out) == (6, kept, 3_000)
        assert {name: (out / name).stat().st_ino for name in files} == files  # not written again
        assert json.loads((out / "manifest.json").read_text()) == expected  # names, rows and hashes
        assert sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / "whole"))


def test_schema_of_the_output(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.txt", 10)
    convert("criteo-kaggle", tmp_path / "train.txt", tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / "train.parquet").equals(criteo_schema().arrow_schema())


@pytest.mark.parametrize(
    ("given", "written"),
    [(None, "LZ4"), ("lz4", "LZ4"), ("zstd", "ZSTD"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED")],
)
def test_compression_of_the_output(tmp_path: Path, given: str | None, written: str) -> None:
    write_lines(tmp_path / "train.txt", 10)
    convert("criteo-kaggle", tmp_path / "train.txt", tmp_path / "out", compression=given)
    group = pq.ParquetFile(tmp_path / "out" / "train.parquet").metadata.row_group(0)
    assert {group.column(i).compression for i in range(group.num_columns)} == {written}
    assert read_manifest(tmp_path / "out").parameters["compression"] == (given or "lz4")
    read = read_all(open_dataset("parquet", tmp_path / "out"))
    assert [row[2:] for row in read] == [
        row[2:] for row in read_all(open_dataset("criteo-kaggle", tmp_path / "train.txt"))
    ]


@pytest.mark.parametrize("name", ["_day.txt", ".day.txt", ".txt"])
def test_a_name_that_readers_would_leave_out_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, b"1\t1\n")
    with pytest.raises(ConversionError, match="which readers of a folder leave out; rename it"):
        run(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
