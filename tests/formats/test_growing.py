"""A folder that grows while it is read: every row once, in order, whatever the timing; waits that end when told."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from headrace.formats.arrow_reader import ArrowFiles
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.datasets import open_dataset
from headrace.formats.delimited_format import TextFormat
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.errors import CorruptShardError, ReadInterruptedError
from headrace.formats.growing import GrowingFolder, Waiting
from headrace.formats.reader import FilePosition
from headrace.formats.rows import SourceRange
from headrace.formats.schema import Schema, Sparse
from tests.support.criteo_text import read_all, rows_of
from tests.support.growing_folder import Writer, appear

SCHEMA = Schema(sparse=(Sparse(name="a"),))


def growing(path: Any, **options: Any) -> GrowingFolder:
    return GrowingFolder(path=path, **{"poll_s": 0.01, "max_idle_s": 30, **options})


def values(reader: Any, **options: Any) -> list[Any]:
    return [row[2] for row in rows_of(read_all(reader, **options))]


def texts(count: int, rows: int = 4) -> list[tuple[str, bytes]]:
    """Files f_0 .. in which row i of file n is 16 * n + i."""
    return [(f"f_{n}", b"".join(b"%x\n" % (16 * n + i) for i in range(rows))) for n in range(count)]


def test_files_are_read_as_they_appear(tmp_path: Path) -> None:
    (tmp_path / "_junk").write_bytes(b"no row")
    (tmp_path / "manifest.json").write_bytes(b"no manifest either")
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    assert (reader.files, reader.num_rows) == ((), None)
    with Writer(tmp_path, texts(12), pause_s=0.015):
        found = values(reader)
    assert found == [16 * n + i for n in range(12) for i in range(4)]  # f_2 comes before f_10
    assert reader.rows_in == 48
    assert len(reader.files) == 12
    assert values(reader) == found  # another pass, of what is there


def test_rows_come_before_the_next_file_is_there(tmp_path: Path) -> None:
    appear(tmp_path, "f_0", b"1\n2\n")
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    blocks = reader.raw_blocks()
    assert reader.decode(next(blocks)).rows.num_rows == 2
    appear(tmp_path, "f_1", b"3\n")
    assert reader.decode(next(blocks)).rows.num_rows == 1
    appear(tmp_path, "_END", b"")
    assert list(blocks) == []


def test_the_last_files_may_appear_in_the_instant_of_the_marker(tmp_path: Path) -> None:
    # the folder is listed once more after the marker was seen: what was renamed before it is never lost
    appear(tmp_path, "f_0", b"1\n")
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    names, calls = reader.store.names, []

    def racing(folder: str) -> dict[str, str]:
        found = names(folder)
        calls.append(folder)
        if len(calls) == 1:  # the listing was made, then both appear, but it holds the marker only
            appear(tmp_path, "f_1", b"2\n")
            appear(tmp_path, "_END", b"")
            return {**found, "_END": str(tmp_path / "_END")}
        return found

    class Store(type(reader.store)):  # type: ignore[misc]
        def names(self, folder: str) -> dict[str, str]:
            return racing(folder)

    reader.store = Store()
    assert values(reader) == [1, 2]


def test_a_listing_that_lacks_a_file_and_has_a_later_one(tmp_path: Path) -> None:
    """Two files appear while a folder is listed, the first of them where the listing has been already."""
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    files, names, lacking = texts(7), reader.store.names, []

    def racing(folder: str) -> dict[str, str]:
        found, new = names(folder), [files.pop(0) for _ in range(min(2, len(files)))]
        for name, data in new:
            appear(tmp_path, name, data)
        if not new:
            appear(tmp_path, "_END", b"")
        lacking.append(len(new) == 2)
        return found | {name: str(tmp_path / name) for name, _ in new[-1:]}

    class Store(type(reader.store)):  # type: ignore[misc]
        def names(self, folder: str) -> dict[str, str]:
            return racing(folder)

    reader.store = Store()
    assert values(reader) == [16 * n + i for n in range(7) for i in range(4)]
    assert sum(lacking) == 3


def test_an_end_without_files(tmp_path: Path) -> None:
    appear(tmp_path, "DONE", b"")
    reader = CriteoFiles(growing(tmp_path, end_marker="DONE"), SCHEMA)
    assert values(reader) == []
    assert reader.num_rows is None


def test_a_file_that_appears_too_late_is_an_error(tmp_path: Path) -> None:
    appear(tmp_path, "f_5", b"1\n")
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    blocks = reader.raw_blocks()
    next(blocks)
    appear(tmp_path, "f_4", b"2\n")
    with pytest.raises(ValueError, match=r"f_4: appeared when .*f_5 was there already; names must sort"):
        next(blocks)


def test_a_file_that_changes_after_it_appeared_is_an_error(tmp_path: Path) -> None:
    appear(tmp_path, "f_0", b"1\n")
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    (tmp_path / "f_0").write_bytes(b"1\n2\n")
    with pytest.raises(CorruptShardError, match="changed since it was listed"):
        values(reader)


def test_an_interrupt_ends_the_wait_at_once(tmp_path: Path) -> None:
    reader = CriteoFiles(growing(tmp_path, poll_s=1000, max_idle_s=None), SCHEMA)
    blocks = reader.raw_blocks()
    threading.Timer(0.1, reader.interrupt).start()
    began = time.monotonic()
    with pytest.raises(ReadInterruptedError, match="closed while it was waited for"):
        next(blocks)
    assert time.monotonic() - began < 60
    appear(tmp_path, "f_0", b"1\n")
    appear(tmp_path, "_END", b"")
    assert values(reader) == [1]  # a new pass is not interrupted


def test_silence_is_an_error_in_the_end(tmp_path: Path) -> None:
    appear(tmp_path, "f_0", b"1\n")
    reader = CriteoFiles(growing(tmp_path, max_idle_s=0.05), SCHEMA)
    blocks = reader.raw_blocks()
    next(blocks)
    with pytest.raises(TimeoutError, match=r"no new file for 0\.05 s, and no '_END'"):
        next(blocks)


def test_the_silence_is_measured_from_the_last_file() -> None:
    waiting = Waiting(growing("x", poll_s=0.01, max_idle_s=0.2))
    for _ in range(5):
        for _ in range(10):  # half of the time that would be too long
            assert waiting.wait()
        waiting.found()


@pytest.mark.parametrize("k", range(5))
def test_a_position_goes_on_with_what_came_meanwhile(tmp_path: Path, k: int) -> None:
    files = texts(6)
    for name, data in files[:4]:
        appear(tmp_path, name, data)
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    blocks = reader.raw_blocks()
    position = None
    for _ in range(min(k, 4)):
        position = reader.decode(next(blocks)).next_position
    digest = reader.digest_at(position)
    for name, data in files[4:]:
        appear(tmp_path, name, data)
    appear(tmp_path, "_END", b"")
    again = CriteoFiles(growing(tmp_path), SCHEMA)
    assert again.digest_at(position) == digest
    assert values(again, start=position) == [16 * n + i for n in range(min(k, 4), 6) for i in range(4)]


def test_a_digest_is_of_the_files_begun(tmp_path: Path) -> None:
    for name, data in texts(3):
        appear(tmp_path, name, data)
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    at = FilePosition(1, 0, 0)
    digests = {reader.digest_at(None), reader.digest_at(FilePosition(0, 0, 0)), reader.digest_at(at)}
    assert len(digests) == 3
    (tmp_path / "f_0").unlink()
    assert CriteoFiles(growing(tmp_path), SCHEMA).digest_at(at) not in digests


def test_other_formats(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("parquet", "csv", "bare")}
    for folder in folders.values():
        folder.mkdir()
    header = TextFormat(name="csv", header=True)
    bare = TextFormat(name="bare", columns=("a",))
    readers = {
        "parquet": ArrowFiles(growing(folders["parquet"]), SCHEMA),
        "csv": DelimitedFiles(growing(folders["csv"]), SCHEMA, header),
        "bare": DelimitedFiles(growing(folders["bare"]), SCHEMA, bare),
    }
    for n in range(3):
        rows = [16 * n + i for i in range(4)]
        pq.write_table(pa.table({"a": pa.array(rows, pa.uint32())}), folders["parquet"] / f"f_{n}.parquet")
        lines = "".join(f"{i:x}\n" for i in rows)
        appear(folders["csv"], f"f_{n}.csv", b"a\n" + lines.encode())
        appear(folders["bare"], f"f_{n}.csv", lines.encode())
    for name, folder in folders.items():
        appear(folder, "_END", b"")
        assert values(readers[name]) == [16 * n + i for n in range(3) for i in range(4)], name
        assert readers[name].num_rows is None


def test_a_folder_of_a_store_grows_too(tmp_path: Path) -> None:
    store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    (tmp_path / "live").mkdir()
    reader = CriteoFiles(growing("live"), SCHEMA, filesystem=store)
    with Writer(tmp_path / "live", texts(3), pause_s=0.02):
        assert values(reader) == [16 * n + i for n in range(3) for i in range(4)]


def test_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="growing folder of arrays"):
        open_dataset("criteo-dlrm-bin", growing(tmp_path))
    reader = CriteoFiles(growing(tmp_path), SCHEMA)
    with pytest.raises(ValueError, match="cannot be selected"):
        reader.select([SourceRange(0, 0, 1)])
    with pytest.raises(FileNotFoundError):
        CriteoFiles(growing(tmp_path / "none"), SCHEMA)
    for options in ({"poll_s": 0}, {"max_idle_s": 0}, {"end_marker": "a/b"}, {"end_marker": ""}):
        with pytest.raises(ValueError, match=next(iter(options))):
            growing(tmp_path, **options)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_cannot_be_read_is_named(tmp_path: Path, kind: str) -> None:
    appear(tmp_path, "f_1", b"1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / ".hidden").symlink_to("nowhere")
    appear(tmp_path, "_END", b"")
    assert values(CriteoFiles(growing(tmp_path), SCHEMA)) == [1]
    if kind == "link":
        (tmp_path / "f_0").symlink_to("nowhere")
        with pytest.raises(FileNotFoundError, match=r"f_0: a symbolic link to 'nowhere'"):
            CriteoFiles(growing(tmp_path), SCHEMA)
    else:
        os.mkfifo(tmp_path / "f_0")
        with pytest.raises(ValueError, match=r"f_0: not a regular file"):
            CriteoFiles(growing(tmp_path), SCHEMA)
