"""Datasets straight from S3: moto's server, and a proxy before it that drops, cuts and refuses."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from headrace.formats.arrow_store import ArrowStore
from headrace.formats.convert import convert
from headrace.formats.datasets import open_dataset
from headrace.formats.errors import StoreReadError
from headrace.formats.range_fetcher import FetchOptions
from headrace.ingest.data_loader import DataLoader
from tests.support.criteo_text import read_all, rows_of, write_lines
from tests.support.s3_server import breaking_proxy, file_system, s3_server

QUICK = FetchOptions(range_bytes=20_000, ahead=3, attempts=4, first_pause_s=0.001, stall_timeout_s=60)
URI = "?scheme=http&region=us-east-1&endpoint_override="


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("s3")
    raw = folder / "raw"
    raw.mkdir()
    for day in (2, 10):
        write_lines(raw / f"day_{day}", 400, seed=day)
    (raw / "day_11.gz").write_bytes(gzip.compress((raw / "day_2").read_bytes()))
    convert("criteo-terabyte", raw, folder / "parquet", row_group_rows=128)
    convert("criteo-terabyte", raw, folder / "tar", row_group_rows=128, to="tar")
    return folder


@pytest.fixture(scope="module")
def endpoint(local: Path) -> Iterator[str]:
    pytest.importorskip("moto.server", reason="moto is not installed")
    with s3_server() as address:
        server = file_system(address, allow_bucket_creation=True)
        server.create_dir("bucket")
        for file in sorted(local.rglob("*")):
            if file.is_file():
                with server.open_output_stream(f"bucket/data/{file.relative_to(local)}", compression=None) as out:
                    out.write(file.read_bytes())
        yield address


@pytest.mark.parametrize(
    ("dataset", "path"),
    [
        ("criteo-terabyte", "raw/day_*"),
        ("criteo-terabyte", "raw"),
        ("criteo-terabyte", "raw/day_11.gz"),
        ("parquet", "parquet"),
        ("tar", "tar/*.tar"),
    ],
)
def test_the_rows_are_those_of_the_local_files(
    local: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch, dataset: str, path: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    expected = open_dataset(dataset, local / path)
    stored = open_dataset(dataset, f"s3://bucket/data/{path}{URI}{endpoint}")
    assert [f.removeprefix("s3://bucket/data/") for f in stored.files] == [
        str(Path(f).relative_to(local)) for f in expected.files
    ]
    assert rows_of(read_all(stored)) == rows_of(read_all(expected))
    assert stored.digest == expected.digest
    counts = stored.store.counts()
    assert counts is not None
    assert counts["bytes_fetched"] >= sum(stored.sizes)


def test_a_loader_over_s3_goes_on_where_its_state_says(local: Path, endpoint: str) -> None:
    def loader_over(paths: Any, filesystem: fs.FileSystem | None) -> DataLoader:
        reader = open_dataset("criteo-terabyte", paths, filesystem=filesystem)
        return DataLoader(reader, 64, schema=reader.schema, window=3, num_workers=2)

    with loader_over(local / "raw", None) as loader:
        expected = [batch.labels.tolist() for batch in loader if batch.labels is not None]
    with loader_over("bucket/data/raw", file_system(endpoint)) as loader:
        batches = iter(loader)
        found = [next(batches).labels.tolist() for _ in range(7)]
        state = loader.state_dict()
    with loader_over("bucket/data/raw", file_system(endpoint)) as loader:
        loader.load_state_dict(state)
        found += [batch.labels.tolist() for batch in loader]
        fetched = loader.stats()["fetched"]
    assert found == expected
    assert fetched["bytes_fetched"] > 0


@pytest.mark.parametrize("what", ["503", "drop", "refuse"])
def test_broken_answers_are_asked_for_again(local: Path, endpoint: str, what: str) -> None:
    seen: dict[str, int] = {}
    lock = threading.Lock()

    def breaks(path: str, headers: Any) -> str:
        wanted = headers.get("Range")
        if wanted is None:
            return ""
        with lock:
            seen[path + wanted] = seen.get(path + wanted, 0) + 1
            return what if seen[path + wanted] <= 2 else ""

    with breaking_proxy(endpoint, breaks) as proxy:
        # the library's own attempts are one here, so that ours are what is tested
        server = file_system(proxy, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
        reader = open_dataset("criteo-terabyte", "bucket/data/raw", filesystem=ArrowStore(server, QUICK))
        assert rows_of(read_all(reader)) == rows_of(read_all(open_dataset("criteo-terabyte", local / "raw")))
    counts = reader.store.counts()
    assert counts is not None
    assert counts["retries"] >= len(seen)


@pytest.mark.parametrize("what", ["503", "drop", "refuse"])
def test_what_stays_broken_is_an_error_with_file_and_range(endpoint: str, what: str) -> None:
    def breaks(path: str, headers: Any) -> str:
        return what if "day_10" in path and headers.get("Range", "").startswith("bytes=40000-") else ""

    began = time.monotonic()
    with breaking_proxy(endpoint, breaks) as proxy:
        server = file_system(proxy, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
        reader = open_dataset("criteo-terabyte", "bucket/data/raw/day_*", filesystem=ArrowStore(server, QUICK))
        message = r"s3://bucket/data/raw/day_10: bytes 40000\.\.59999 did not come in 4 attempts: "
        with pytest.raises(StoreReadError, match=message):
            read_all(reader)
        with (
            DataLoader(reader, 64, schema=reader.schema, num_workers=2) as loader,
            pytest.raises(StoreReadError, match=message),
        ):
            for _ in loader:
                pass
    assert time.monotonic() - began < 60


SILENT = """
import socket, sys, threading, time
from headrace.formats.datasets import open_dataset
from headrace.formats.errors import StoreReadError

DATE = "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT"

def serve(connection):
    while request := connection.recv(65536):
        if sys.argv[1] == "silent":
            continue
        if request.startswith(b"HEAD"):
            connection.sendall(f"HTTP/1.1 200 OK\\r\\nContent-Length: 9999\\r\\n{DATE}\\r\\n\\r\\n".encode())
            continue
        connection.sendall(b"HTTP/1.1 206 Partial\\r\\nContent-Length: 9999\\r\\n")
        connection.sendall(b"Content-Range: bytes 0-9998/9999\\r\\n\\r\\n")
        while True:
            connection.sendall(b"xxxx")
            time.sleep(0.2)

def accept():
    while True:
        threading.Thread(target=serve, args=listening.accept()[:1], daemon=True).start()

listening = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=accept, daemon=True).start()
address = f"127.0.0.1:{listening.getsockname()[1]}"
uri = f"s3://x:x@bucket/day_0?scheme=http&region=x&endpoint_override={address}&stall_timeout_s=2"
began = time.monotonic()
try:
    next(open_dataset("criteo-terabyte", uri, verify_manifest="off").raw_blocks())
except StoreReadError as error:
    print(time.monotonic() - began, error)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("what", "asked"), [("silent", r"0\.\.0"), ("drip", r"0\.\.9998")])
def test_a_server_that_does_not_answer_ends_in_bounded_time(repository: Path, what: str, asked: str) -> None:
    # Arrow's library would try for over a minute, we five times that; bytes that drip keep it for hours. And its end of
    # the program waits for whatever is under way, without bound: the process must end all the same.
    environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [sys.executable, "-c", SILENT, what], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf" s3://bucket/day_0: bytes {asked} did not come in ", done.stdout)
    assert 2 <= float(done.stdout.split()[0]) < 300


def test_a_bucket_that_is_not_there(endpoint: str) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder: s3://nobucket/x"):
        open_dataset("criteo-kaggle", "nobucket/x", filesystem=file_system(endpoint))
