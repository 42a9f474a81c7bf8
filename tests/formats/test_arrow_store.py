"""Files of a store mean what local ones mean: the same lists, the same rows, the same errors."""

from __future__ import annotations

import gzip
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from headrace.formats.arrow_reader import ArrowFiles
from headrace.formats.arrow_store import ArrowStore, _open_uri, store_of
from headrace.formats.convert import convert
from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.datasets import open_dataset
from headrace.formats.errors import BadRecordError, CorruptShardError, ManifestError, StoreReadError
from headrace.formats.manifest import Manifest, describe_file, write_manifest
from headrace.formats.range_fetcher import FetchOptions
from headrace.formats.schema import Schema, Sparse
from headrace.formats.store import LOCAL
from tests.support.criteo_text import read_all, rows_of, write, write_lines
from tests.support.faulty_files import FaultyFiles

SMALL_RANGES = FetchOptions(range_bytes=3000, ahead=2)


def store_over(folder: Path, options: FetchOptions = SMALL_RANGES) -> ArrowStore:
    return ArrowStore(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), options)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = [
        "day_10.tsv", "day_2.tsv", "day_1.tsv.gz", ".hidden", "_part", "manifest.json", "a[b].tsv",
        "deep/day_3.tsv", "deep/er/day_4.tsv", "other/x.csv",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    return tmp_path


@pytest.mark.parametrize(
    "paths",
    [
        "day_2.tsv", "", "*.tsv", "day_?.tsv*", "day_[0-9].tsv", "day_[!2]*", "deep", "deep/", "**/*.tsv", "deep/**",
        "*/day_*", "**/day_4.tsv", "a[b].tsv", ["other/x.csv", "day_2.tsv"],
    ],
)  # fmt: skip
def test_paths_mean_what_they_mean_locally(tree: Path, paths: Any) -> None:
    given = paths if isinstance(paths, list) else [paths]
    local = [str(Path(f).relative_to(tree)) for f in LOCAL.find([f"{tree}/{p}" for p in given])]
    store = ArrowStore(fs.LocalFileSystem())
    found = store.find([f"{tree}/{path}" for path in given])
    assert [str(Path(f.removeprefix("local://")).relative_to(tree)) for f in found] == local
    assert store.sizes(found) == (2,) * len(local)


@pytest.mark.parametrize(
    ("path", "error", "match"),
    [
        ("none.tsv", FileNotFoundError, "no such file or folder"),
        ("none/*.tsv", FileNotFoundError, "no data files match"),
        (".hid*", FileNotFoundError, r"1 files there are hidden"),
        ("dee*", ValueError, "a folder matches the pattern"),
        ([], FileNotFoundError, "empty list"),
    ],
)
def test_what_is_not_there_is_said_as_locally(tree: Path, path: Any, error: type[Exception], match: str) -> None:
    inside = [f"{tree}/{p}" for p in ([path] if isinstance(path, str) else path)]
    for store in (LOCAL, ArrowStore(fs.LocalFileSystem())):
        with pytest.raises(error, match=match):
            store.find(inside)


def test_uris(tree: Path) -> None:
    store, paths = store_of(f"file://{tree}/day_?.tsv", None)
    assert isinstance(store, ArrowStore)
    assert store.find(paths) == (f"local://{tree}/day_2.tsv",)
    store, paths = store_of([f"file://{tree}/day_2.tsv", f"file://{tree}/day_10.tsv"], None)
    assert [name.rpartition("/")[2] for name in store.find(paths)] == ["day_2.tsv", "day_10.tsv"]
    assert store_of(f"{tree}/day_2.tsv", None)[0] is LOCAL
    assert store_of(tree / "day_2.tsv", None)[0] is LOCAL


def test_a_uri_of_s3_with_parameters_and_a_pattern() -> None:
    uri = "s3://k:secret@bucket/pre fix/day_?.gz?endpoint_override=localhost:1&scheme=http&region=eu-west-1"
    store, path = store_of(uri, None)
    assert isinstance(store, ArrowStore)
    assert isinstance(store.filesystem, fs.S3FileSystem)
    assert path == "bucket/pre fix/day_?.gz"
    assert store.filesystem.region == "eu-west-1"


def test_a_uri_says_how_to_fetch(tree: Path) -> None:
    store, path = store_of("s3://bucket/a?attempts=7&scheme=http&region=x&stall_timeout_s=2.5&range_bytes=1000", None)
    assert isinstance(store, ArrowStore)
    assert isinstance(store.filesystem, fs.S3FileSystem)
    assert (path, store.options) == ("bucket/a", FetchOptions(attempts=7, stall_timeout_s=2.5, range_bytes=1000))
    store, _ = store_of([f"file://{tree}/{name}?ahead=2" for name in ("day_2.tsv", "day_10.tsv")], None)
    assert isinstance(store, ArrowStore)
    assert store.options == FetchOptions(ahead=2)


@pytest.mark.parametrize("scheme", ["hdfs", "viewfs"])
def test_what_hadoop_knows_is_handed_on(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    asked: list[str] = []

    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        asked.append(uri)
        return fs.LocalFileSystem(), ""

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=from_uri))
    _open_uri(f"{scheme}://host/a?user=me&dfs.client.use.datanode.hostname=true&attempts=2")
    assert asked == [f"{scheme}://host?user=me&dfs.client.use.datanode.hostname=true"]


@pytest.mark.parametrize(
    ("paths", "match"),
    [
        ("file:///a?attempts=many", "attempts=many: not a number"),
        ("file:///a?attemps=2", r"file:///a: attemps is none of the parameters .*attempts"),
        ("file:///a?attempts=2&region=x", "region is none of the parameters"),
        ("FILE:///a?attemps=2", r"attemps is none of the parameters .*attempts"),
        ("hdfs://host/a?usr=me", r"^hdfs://host/a: usr is none of the parameters user, .*attempts.*Hadoop's config"),
        ("viewfs://me@host/a?ahead=2&user=me&attemps=2", r"^viewfs://host/a: attemps is none of the parameters user, "),
        ("s3://bucket/a?regoin=x", r"^s3://bucket/a: .*'regoin'; known are region, .*stall_timeout_s"),
        ("gs://bucket/a?regoin=x", r"^gs://bucket/a: .*'regoin'; known are .*location.*stall_timeout_s"),
        ("file:///a?stall_timeout_s=0", "stall_timeout_s=0"),
        (["file:///a?ahead=2", "file:///b"], "of several file systems"),
        ("pipe:cat /etc/passwd", "is a command, and none is run here"),
        (["pipe:touch x"], "is a command"),
        ("nosuch://host/x", "nosuch://host/x: no file system for it"),
        ("http://host/x", "http://host/x: no file system for it"),
        (["file:///a", "/b"], "cannot be read by one reader"),
    ],
)
def test_what_is_refused(paths: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        store_of(paths, None)


def test_no_credentials_in_errors_or_names() -> None:
    with pytest.raises(ValueError, match=r"^nosuch://host/x: ") as caught:
        store_of("nosuch://user:hunter2@host/x", None)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match=r"^s3://bucket/x: ") as caught:
        store_of("s3://user:hunter2@bucket/x?no_such_option=1", None)
    assert "hunter2" not in str(caught.value)


def small_array_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 1000, (50, 40), np.int32)
    rows[:, 0] %= 2  # labels
    rows.tofile(folder / "train_data.bin")
    np.save(folder / "day_0_labels.npy", np.ones((40, 1), np.int32))
    np.save(folder / "day_0_dense.npy", rng.random((40, 13), np.float32))
    np.save(folder / "day_0_sparse.npy", rng.integers(0, 9, (40, 26), np.int64))
    arrays = {"X_int": rng.integers(0, 9, (30, 13)), "X_cat": rng.integers(0, 9, (30, 26)), "y": np.ones(30, np.int32)}
    np.savez(folder / "stored_reordered.npz", **arrays)
    np.savez_compressed(folder / "packed_reordered.npz", **arrays)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    text = folder / "text"
    text.mkdir()
    write_lines(text / "day_0", 150, seed=1)
    data = (text / "day_0").read_bytes()
    (text / "day_1.gz").write_bytes(gzip.compress(data) + gzip.compress(data))
    with pa.output_stream(str(text / "day_2.zst"), compression="zstd") as out:
        out.write(data)
    csv = folder / "csv"
    csv.mkdir()
    header = ",".join(["Id", "Label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))])
    rows = [f"{i}," + line.replace("\t", ",") for i, line in enumerate(data.decode().splitlines())]
    (csv / "train.csv").write_text("\r\n".join([header, *rows]) + "\r\n")
    convert("criteo-kaggle", text, folder / "parquet", row_group_rows=70)
    convert("criteo-kaggle", text, folder / "tar", row_group_rows=70, to="tar")
    ipc = folder / "ipc"
    ipc.mkdir()
    table = pq.read_table(folder / "parquet" / "day_0.parquet")
    with pa.ipc.new_file(str(ipc / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    with pa.ipc.new_stream(str(ipc / "b.arrows"), table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    arrays = folder / "arrays"
    arrays.mkdir()
    small_array_files(arrays)
    return folder


@pytest.mark.parametrize(
    ("dataset", "path", "options"),
    [
        ("criteo-kaggle", "text", {"block_bytes": 4096}),
        ("criteo-kaggle", "text/day_*", {}),
        ("criteo-csv", "csv/train.csv", {"block_bytes": 4096}),
        ("parquet", "parquet", {"batch_rows": 33}),
        ("parquet", "ipc", {"batch_rows": 33}),
        ("tar", "tar", {"batch_rows": 33}),
        ("criteo-dlrm-bin", "arrays/train_data.bin", {"batch_rows": 7}),
        ("criteo-torchrec-npy", "arrays/day_0_sparse.npy", {"batch_rows": 7}),
        ("criteo-dlrm-npz", "arrays/stored_reordered.npz", {"batch_rows": 7}),
        ("criteo-dlrm-npz", "arrays/packed_reordered.npz", {"batch_rows": 7}),
    ],
)
def test_every_reader_reads_a_store_as_it_reads_a_folder(samples: Path, dataset: str, path: str, options: Any) -> None:
    local = open_dataset(dataset, samples / path, verify_manifest="full", **options)
    stored = open_dataset(dataset, path, filesystem=store_over(samples), verify_manifest="full", **options)
    expected = read_all(local)
    assert rows_of(read_all(stored)) == rows_of(expected)
    assert stored.digest == local.digest
    assert [name.removeprefix("subtree://") for name in stored.files] == [
        str(Path(name).relative_to(samples)) for name in local.files
    ]
    assert stored.num_rows == local.num_rows
    counts = stored.store.counts()
    assert counts is not None
    assert counts["bytes_fetched"] > 0
    assert local.store.counts() is None
    blocks = list(stored.raw_blocks())
    for i in range(0, len(blocks), max(1, len(blocks) // 4)):  # resumed anywhere
        position = stored.decode(blocks[i]).next_position
        rest = rows_of(read_all(stored, start=position))
        assert rest == rows_of([local.decode(b).rows for b in local.raw_blocks(start=position)])


def test_convert_reads_a_store(samples: Path, tmp_path: Path) -> None:
    store = store_over(samples)
    report = convert("criteo-kaggle", "text", tmp_path, filesystem=store, row_group_rows=70)
    assert report.rows_out == 150 * 4
    for name in ("day_0.parquet", "day_1.parquet", "day_2.parquet"):
        assert (tmp_path / name).read_bytes() == (samples / "parquet" / name).read_bytes()
    assert convert("criteo-kaggle", "text", tmp_path, filesystem=store, row_group_rows=70).files_kept == 3


def test_errors_name_the_file_of_the_store(tmp_path: Path) -> None:
    schema = Schema(sparse=(Sparse(name="a"),))
    write(tmp_path / "x", b"1\nbad!\n")
    with pytest.raises(BadRecordError, match=r"^subtree://x, line 2, column a: b'bad!'"):
        read_all(CriteoFiles("x", schema, filesystem=store_over(tmp_path)))
    whole = gzip.compress(b"1\n" * 1000)
    (tmp_path / "y.gz").write_bytes(whole[:-1])
    with pytest.raises(CorruptShardError, match=r"^subtree://y\.gz: the file ends inside a gzip member"):
        read_all(CriteoFiles("y.gz", schema, filesystem=store_over(tmp_path)))
    reader = CriteoFiles("x", schema, filesystem=store_over(tmp_path))
    write(tmp_path / "x", b"1\n2\n3\n")
    with pytest.raises(CorruptShardError, match=r"subtree://x: changed since it was listed"):
        read_all(reader)


def test_a_manifest_in_the_store_is_checked(tmp_path: Path) -> None:
    schema = Schema(sparse=(Sparse(name="a"),))
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "x", b"1\n2\n")
    write_manifest(tmp_path / "d", Manifest(files={"x": describe_file(tmp_path / "d" / "x", rows=2)}))
    reader = CriteoFiles("d", schema, filesystem=store_over(tmp_path))
    assert reader.num_rows == 2
    assert len(read_all(reader)) == 1
    shutil.copy(tmp_path / "d" / "x", tmp_path / "d" / "y")
    with pytest.raises(ManifestError, match=r"1 files are not in its manifest, the first is 'y'"):
        CriteoFiles("d", schema, filesystem=store_over(tmp_path))
    write(tmp_path / "d" / "x", b"1\n3\n")
    with pytest.raises(ManifestError, match="BLAKE2b"):
        read_all(CriteoFiles("d/x", schema, filesystem=store_over(tmp_path), verify_manifest="full"))


@pytest.mark.parametrize("path", ["parquet/day_0.parquet", "ipc/a.arrow", "ipc/b.arrows", "text/day_2.zst"])
def test_a_read_that_fails_is_not_taken_for_damage(samples: Path, path: str) -> None:
    # L92 the other way round: Arrow wraps whatever a file raises
    size = (samples / path).stat().st_size
    files = FaultyFiles(samples, lambda name, offset, nbytes: "error" if offset <= size // 2 < offset + nbytes else "")
    options = FetchOptions(range_bytes=500, ahead=1, attempts=2, first_pause_s=0.001)
    store = ArrowStore(files, options)  # type: ignore[arg-type]
    reader = (CriteoFiles if path.startswith("text") else ArrowFiles)(
        path, criteo_schema(), filesystem=store, verify_manifest="off"
    )
    message = rf"^faulty://{path}: bytes \d+\.\.\d+ did not come in 2 attempts: the connection was reset"
    with pytest.raises(StoreReadError, match=message):
        read_all(reader)


def test_information_that_goes_on_failing_ends_in_bounded_time(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)

    def never(what: Any) -> Any:
        raise OSError("503")

    files.get_file_info = never  # type: ignore[method-assign]
    store = ArrowStore(files, FetchOptions(attempts=1000, first_pause_s=0.05, stall_timeout_s=0.5))  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(StoreReadError, match=r"faulty://x: .* no information about it: 503"):
        store.find("x")
    assert time.monotonic() - began < 20


def test_information_that_fails_is_asked_for_again(tmp_path: Path) -> None:
    write(tmp_path / "x", b"1\n")
    files = FaultyFiles(tmp_path)
    answers, ask = [OSError("503"), OSError("503")], files.get_file_info

    def sometimes(what: Any) -> Any:
        if answers:
            raise answers.pop()
        return ask(what)

    files.get_file_info = sometimes  # type: ignore[method-assign]
    options = FetchOptions(attempts=3, first_pause_s=0.001, stall_timeout_s=5)
    store = ArrowStore(files, options)  # type: ignore[arg-type]
    assert store.find("x") == ("faulty://x",)
    answers += [OSError("503")] * 3
    with pytest.raises(StoreReadError, match=r"faulty://x: .* in 3 attempts: no information about it: 503"):
        store.find("x")
    assert store.counts()["retries"] == 2 + 2
