"""Tar shards of Arrow record batches: written by `convert`, by webdataset, by hand; read, resumed, refused."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.convert import convert
from headrace.formats.datasets import open_dataset
from headrace.formats.errors import ColumnMismatchError, CorruptShardError, ManifestError, ReadInterruptedError
from headrace.formats.manifest import read_manifest
from headrace.formats.schema import Schema, Sparse
from headrace.formats.tar_reader import TarFiles
from tests.support.criteo_text import read_all, rows_of, write_lines

SCHEMA = Schema(sparse=(Sparse(name="a"), Sparse(name="b", encoding="uint64")))


def values(reader: Any) -> list[tuple[Any, ...]]:
    return [row[2:] for row in rows_of(read_all(reader))]


def stream(first: int, rows: int, kind: Any = None) -> bytes:
    """An IPC stream of `rows` rows (i, 2 * i), i from `first` on."""
    numbers = range(first, first + rows)
    table = pa.table(
        {"a": pa.array(numbers, kind or pa.uint32()), "b": pa.array([2 * i for i in numbers], pa.uint64())}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue().to_pybytes()


def shard(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def expected(rows: int, first: int = 0) -> list[tuple[int, int]]:
    return [(i, 2 * i) for i in range(first, first + rows)]


def test_rows_in_the_order_of_the_members(tmp_path: Path) -> None:
    shard(tmp_path / "x-0.tar", ("z.arrow", stream(0, 7)), ("a.arrow", stream(7, 0)), ("sub/b.ipc", stream(7, 5)))
    shard(tmp_path / "x-1.tar", ("z.arrows", stream(12, 2)))
    reader = TarFiles(tmp_path, SCHEMA)
    assert values(reader) == expected(14)
    assert [row[:2] for row in rows_of(read_all(reader))] == [(0, i) for i in range(12)] + [(1, 0), (1, 1)]
    assert (reader.rows_in, reader.num_rows) == (14, None)


def test_members_that_are_ipc_files(tmp_path: Path) -> None:
    table = pa.ipc.open_stream(stream(0, 9)).read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    shard(tmp_path / "x.tar", ("a.arrow", sink.getvalue().to_pybytes()), ("b.arrow", stream(9, 1)))
    assert values(TarFiles(tmp_path / "x.tar", SCHEMA)) == expected(10)


def test_webdatasets_own_writer_and_packed_archives(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "x.tar"), encoder=False) as writer:
        for i in range(3):
            writer.write({"__key__": f"part-{i}", "arrow": stream(4 * i, 4)})
    assert values(TarFiles(tmp_path / "x.tar", SCHEMA)) == expected(12)
    (tmp_path / "y.tar.gz").write_bytes(gzip.compress((tmp_path / "x.tar").read_bytes()))
    assert values(TarFiles(tmp_path / "y.tar.gz", SCHEMA)) == expected(12)
    (tmp_path / "z.tar.gz").write_bytes((tmp_path / "y.tar.gz").read_bytes()[:-9])
    with pytest.raises(CorruptShardError, match=r"z\.tar\.gz: the file ends inside a gzip member"):
        values(TarFiles(tmp_path / "z.tar.gz", SCHEMA))


@settings(max_examples=25, deadline=None)
@given(batch_rows=st.integers(1, 30), at=st.integers(0, 40), data=st.data())
def test_a_resume_goes_on_with_the_next_row(
    tmp_path_factory: pytest.TempPathFactory, batch_rows: int, at: int, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("resume")
    sizes = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))
    members, first = [], 0
    for i, size in enumerate(sizes):
        members.append((f"{i}.arrow", stream(first, size)))
        first += size
    shard(folder / "x.tar", *members)
    reader = TarFiles(folder / "x.tar", SCHEMA, batch_rows=batch_rows)
    blocks = list(reader.raw_blocks())
    if not blocks:
        return
    decoded = reader.decode(blocks[min(at, len(blocks) - 1)])
    rest = rows_of(read_all(reader, start=decoded.next_position))
    assert [row[2:] for row in rest] == expected(first - decoded.next_position.line, decoded.next_position.line)


def test_every_truncation_is_an_error_and_never_a_silent_end(tmp_path: Path) -> None:
    # L100, L101: tarfile, and webdataset with it, end in silence when a file is cut between members or in a header
    path = shard(tmp_path / "x.tar", ("a.arrow", stream(0, 5)), ("b.arrow", stream(5, 5)))
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    marked = -(-end // 512) * 512 + 1024
    for size in [*range(0, marked, 97), *range(0, marked, 512), marked - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(CorruptShardError):
            values(TarFiles(path, SCHEMA))
    path.write_bytes(data[:marked])
    assert values(TarFiles(path, SCHEMA)) == expected(10)


def test_a_header_that_is_damaged_is_no_end(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.tar", ("a.arrow", stream(0, 5)), ("b.arrow", stream(5, 5)))
    data = bytearray(path.read_bytes())
    second = data.index(b"b.arrow")
    data[second + 120] ^= 1
    path.write_bytes(bytes(data))
    reader = TarFiles(path, SCHEMA, batch_rows=5)
    blocks = reader.raw_blocks()
    rows = [reader.settle(reader.decode(next(blocks))) for _ in range(2)]  # what is whole is given out first
    assert [row[2:] for row in rows_of(rows)] == expected(5)
    with pytest.raises(CorruptShardError, match=r"damaged header behind member 1 at byte .*; 5 rows were read before"):
        next(blocks)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/etc/passwd.arrow", "not a plain relative one"),
        ("../x.arrow", "not a plain relative one"),
        ("a/../x.arrow", "not a plain relative one"),
        ("a\\b.arrow", "not a plain relative one"),
        ("x.json", r"member 'x\.json' is none of Arrow's"),
        ("x", "none of Arrow's"),
        ("ok.arrow", "member 'ok.arrow' is there twice"),
        ("__x__/y.arrow", None),
    ],
)
def test_names_of_members(tmp_path: Path, name: str, message: str | None) -> None:
    # L103: a name that is there twice is no crash
    path = shard(tmp_path / "x.tar", ("ok.arrow", stream(0, 1)), (name, stream(1, 1)))
    reader = TarFiles(path, SCHEMA)
    if message is None:
        assert values(reader) == expected(2)
        return
    with pytest.raises(CorruptShardError, match=message):
        values(reader)


def test_a_member_that_webdataset_passes_by_is_not_lost_in_silence(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.tar", ("a.arrow", stream(0, 1)), ("__meta.arrow__", stream(1, 1)))
    with pytest.raises(CorruptShardError, match="2 members, of which webdataset gave 1"):
        values(TarFiles(path, SCHEMA))


def test_a_later_member_whose_names_are_no_text_is_damaged(tmp_path: Path) -> None:
    # found by the long fuzz: the message about other columns could not be written
    damaged = stream(5, 5).replace(b"\x01\0\0\0a", b"\x01\0\0\0\xf7", 1)
    assert damaged != stream(5, 5)
    reader = TarFiles(shard(tmp_path / "x.tar", ("a.arrow", stream(0, 5)), ("b.arrow", damaged)), SCHEMA)
    blocks = reader.raw_blocks()
    assert sum(reader.settle(reader.decode(block)).num_rows for _, block in zip(range(2), blocks, strict=False)) == 5
    with pytest.raises(CorruptShardError, match=r"x\.tar.*damaged or cut .*0xf7") as caught:
        next(blocks)
    assert caught.value.rows_salvaged == 5


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([], CorruptShardError, "an archive without members"),
        ([("a.arrow", b"")], CorruptShardError, "damaged"),
        ([("a.arrow", stream(0, 5)), ("b.arrow", stream(5, 5)[:200])], CorruptShardError, "5 rows were read before it"),
        ([("a.arrow", stream(0, 5)), ("b.arrow", stream(5, 5, pa.int64()))], ColumnMismatchError, "b.arrow"),
    ],
)
def test_members_that_cannot_be_read(tmp_path: Path, members: Any, error: type[Exception], message: str) -> None:
    # L102: an archive without members and a file without bytes (above: cut) are both errors of one type
    path = shard(tmp_path / "x.tar", *members)
    with pytest.raises(error, match=message):
        values(TarFiles(path, SCHEMA))


def test_a_member_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.tar", ("a.arrow", stream(0, 500)))
    with pytest.raises(CorruptShardError, match="allowed are 100"):
        values(TarFiles(path, SCHEMA, max_member_bytes=100))


# ---- convert --------------------------------------------------------------------------------------------------------


def test_a_sparse_member_is_refused_before_it_is_blown_up(tmp_path: Path) -> None:
    """A few kilobytes that a tar reader would make 3 GiB of."""
    data, records = (
        stream(0, 3),
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(3 << 30)},
    )
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.arrow")
        body = b"1\n0\n%d\n".ljust(512, b"\0") % len(data) + data
        info.size, info.pax_headers = len(body), records
        tar.addfile(info, io.BytesIO(body))
    with pytest.raises(CorruptShardError, match="makes a sparse file"):
        values(TarFiles(tmp_path / "x.tar", SCHEMA, max_member_bytes=1 << 20))


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_convert_writes_shards_that_read_the_same(tmp_path: Path, compression: str) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    write_lines(raw / "day_0.txt", 250, seed=0)
    (raw / "day_1.txt").write_bytes(b"")
    for out, threads in (("tar", 1), ("again", 2)):
        report = convert(
            "criteo-kaggle", raw, tmp_path / out, to="tar", compression=compression, row_group_rows=100, threads=threads
        )
        assert (report.rows_in, report.rows_out, report.files) == (250, 250, 2)
    reader = open_dataset("tar", tmp_path / "tar", verify_manifest="full")
    assert values(reader) == values(open_dataset("criteo-kaggle", raw / "day_0.txt"))
    assert reader.num_rows == 250
    with tarfile.open(tmp_path / "tar" / "day_0.tar") as tar:
        assert tar.getnames() == ["day_0-000000.arrow", "day_0-000001.arrow", "day_0-000002.arrow"]
        assert all((m.mtime, m.uname, m.gname) == (0, "", "") for m in tar.getmembers())
    for name in ("day_0.tar", "day_1.tar"):
        assert (tmp_path / "tar" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_convert_to_another_form_is_another_conversion(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.txt", 20)
    convert("criteo-kaggle", tmp_path / "train.txt", tmp_path / "out", to="tar")
    assert convert("criteo-kaggle", tmp_path / "train.txt", tmp_path / "out", to="tar").files_kept == 1
    with pytest.raises(FileExistsError):
        convert("criteo-kaggle", tmp_path / "train.txt", tmp_path / "out")
    with pytest.raises(ValueError, match="to='csv' is not one of parquet, tar"):
        convert("criteo-kaggle", tmp_path / "train.txt", tmp_path / "o", to="csv")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compression='snappy'"):
        convert("criteo-kaggle", tmp_path / "train.txt", tmp_path / "o", to="tar", compression="snappy")


def test_the_manifest_is_verified_and_stands_in_for_the_mark_of_the_end(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.txt", 50)
    out = tmp_path / "out"
    convert("criteo-kaggle", tmp_path / "train.txt", out, to="tar", row_group_rows=20, compression="none")
    path = out / "train.tar"
    data = bytearray(path.read_bytes())
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.files["train.tar"].rows == 50
    path.write_bytes(bytes(data[:-10]))
    with pytest.raises(ManifestError, match="cut, or changed since"):
        read_all(open_dataset("tar", out))
    at = data.index(b"ARROW") if b"ARROW" in data else 2000
    data[at] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ManifestError, match="BLAKE2b"):
        read_all(open_dataset("tar", out, verify_manifest="full"))
    # a shard whose last member is missing has fewer rows than its manifest says
    shutil.rmtree(out)
    convert("criteo-kaggle", tmp_path / "train.txt", out, to="tar", row_group_rows=20)
    text = (out / "manifest.json").read_text().replace('"rows": 50', '"rows": 51')
    (out / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match="50 rows, the manifest says 51"):
        read_all(open_dataset("tar", out))


# ---- commands -------------------------------------------------------------------------------------------------------


def test_commands_are_off(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for url in (f"pipe:touch {victim}", [f"pipe:touch {victim}"]):
        with pytest.raises(ValueError, match="is a command, and none is run here"):
            TarFiles(url, SCHEMA)
    for url in ("http://127.0.0.1:1/x.tar", "scp://x/y.tar"):
        with pytest.raises(ValueError, match="no file system for it"):
            TarFiles(url, SCHEMA)
    with pytest.raises(ValueError, match=r"allow_commands=\['rm'\]"):
        TarFiles("pipe:x", SCHEMA, allow_commands=("rm",))
    with pytest.raises(TypeError, match=r"allow_commands are names of schemes .*, in a list or tuple, not a str"):
        TarFiles("pipe:x", SCHEMA, allow_commands="pipe")
    with pytest.raises(ValueError, match="is a command"):  # another one was allowed
        TarFiles(f"pipe:touch {victim}", SCHEMA, allow_commands=("scp",))
    assert not victim.exists()


def test_a_command_that_is_allowed_by_name(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.tar", ("a.arrow", stream(0, 50)), ("b.arrow", stream(50, 50)))
    reader = TarFiles(f"pipe:cat {path}", SCHEMA, allow_commands=("pipe",))
    assert values(reader) == expected(100)
    assert values(reader) == expected(100)
    with pytest.raises(CorruptShardError, match="cut"):
        values(TarFiles(f"pipe:head -c 1000 {path}", SCHEMA, allow_commands=("pipe",)))
    with pytest.raises(OSError, match="the command ended with status 3"):
        values(TarFiles(f"pipe:cat {path}; exit 3", SCHEMA, allow_commands=("pipe",)))


def test_a_command_that_hangs_is_interrupted() -> None:
    reader = TarFiles("pipe:sleep 100", SCHEMA, allow_commands=("pipe",))
    threading.Timer(0.3, reader.interrupt).start()
    began = time.monotonic()
    with pytest.raises(ReadInterruptedError):
        next(iter(reader.raw_blocks()))
    assert time.monotonic() - began < 30


def test_bytes_behind_the_stream_of_a_member_are_not_passed_by(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.tar", ("a.arrow", stream(0, 2)), ("b.arrow", stream(2, 2) + stream(4, 2)))
    with pytest.raises(CorruptShardError, match=r"member b\.arrow: other bytes behind .* 4 rows were read"):
        read_all(TarFiles(path, SCHEMA))
    shard(path, ("a.arrow", stream(0, 2)[:-8]))  # its size stands in the archive: nothing can be cut
    assert values(TarFiles(path, SCHEMA)) == expected(2)
