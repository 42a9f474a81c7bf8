"""Files that are read as another kind: the error says what they are, and what reads them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.formats.datasets import open_dataset
from headrace.formats.errors import CorruptShardError
from headrace.formats.file_kinds import HEAD_BYTES, kind_of
from headrace.formats.schema import Label, Schema

SCHEMA = Schema(labels=(Label(name="clk"),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of each kind, each named by it."""
    table = pa.table({"clk": [0, 1]})
    pq.write_table(table, tmp_path / "parquet")
    with pa.ipc.new_file(tmp_path / "arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(tmp_path / "stream", table.schema) as writer:
        writer.write_table(table)
    for name, mode in (("tar", "w"), ("tar.gz", "w:gz")):
        with tarfile.open(tmp_path / name, mode) as archive:  # type: ignore[call-overload]
            archive.add(tmp_path / "stream", "a.arrows")
    np.savez(tmp_path / "npz", y=np.zeros(3))
    np.save(tmp_path / "npy", np.zeros(3))
    (tmp_path / "npz.npz").rename(tmp_path / "npz")
    (tmp_path / "npy.npy").rename(tmp_path / "npy")
    return tmp_path


KINDS = {
    "parquet": "this is Parquet: ",
    "arrow": "this is Arrow: ",
    "stream": "this is Arrow: ",
    "tar": "this is a tar archive: ",
    "tar.gz": "this is gzip data: ",
    "npz": r"this is a zip archive or \.npz arrays: ",
    "npy": "this is a NumPy array: ",
}
READ_AS = [
    ("avazu", "", set()),
    ("parquet", "", {"parquet", "arrow", "stream"}),
    ("tar", "", {"tar", "tar.gz"}),
    ("criteo-dlrm-npz", ".npz", {"npz"}),
]


@pytest.mark.parametrize(("dataset", "suffix", "own"), READ_AS)
def test_a_file_of_another_kind_is_named(folder: Path, dataset: str, suffix: str, own: set[str]) -> None:
    schema = SCHEMA if dataset in ("parquet", "tar") else None
    for name in KINDS.keys() - own:
        path = (folder / name).rename(folder / f"{name}{suffix}")
        kind = KINDS["tar" if name == "tar.gz" and dataset == "avazu" else name]  # which is decompressed first
        with pytest.raises(CorruptShardError, match=kind):
            list(open_dataset(dataset, path, schema=schema).raw_blocks())


def test_records_that_are_another_kind(folder: Path) -> None:
    path = (folder / "parquet").rename(folder / "x.bin")
    path.write_bytes(path.read_bytes() + b"x" * (path.stat().st_size % 160 == 0))
    with pytest.raises(CorruptShardError, match=r"not whole records of 160 bytes .* \(this is Parquet: "):
        list(open_dataset("criteo-dlrm-bin", path).raw_blocks())


def test_binary_data_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"click\0,C1\n0,1\n")
    with pytest.raises(CorruptShardError, match=r"no text with a header \(this is binary data\)"):
        list(open_dataset("avazu", tmp_path / "x.csv").raw_blocks())


@pytest.mark.parametrize("head", [b"", b"P", b"label\tI1\n", b"0,5\n", b"x" * HEAD_BYTES])
def test_text_is_of_no_kind(head: bytes) -> None:
    assert kind_of(head) == ""


def test_a_cut_tar_shard_is_not_taken_for_another_kind(folder: Path) -> None:
    (folder / "tar").write_bytes((folder / "tar").read_bytes()[:700])
    with pytest.raises(CorruptShardError) as caught:
        list(open_dataset("tar", folder / "tar", schema=SCHEMA).raw_blocks())
    assert "this is" not in str(caught.value)
