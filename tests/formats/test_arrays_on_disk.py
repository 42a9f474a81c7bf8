"""Arrays in files: every order and dtype, every way to write a zip, every cut."""

from __future__ import annotations

import errno
import io
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.formats.arrays_on_disk import open_npy, open_npz, open_records
from headrace.formats.errors import ColumnMismatchError, CorruptShardError


def npy_bytes(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(0, 9),
    width=st.integers(0, 4),
    dtype=st.sampled_from(["<i4", ">i4", "<i8", "<f4", "<f2", "|b1", "|u1"]),
    order=st.sampled_from(["C", "F"]),
    data=st.data(),
)
def test_any_range_of_rows(tmp_path: Path, rows: int, width: int, dtype: str, order: Any, data: st.DataObject) -> None:
    array = np.asarray(np.arange(rows * width).reshape(rows, width) % 2, dtype, order=order)
    first = data.draw(st.integers(0, rows))
    count = data.draw(st.integers(0, rows - first))
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "stored.npz", other=np.zeros(3), x=array)
    np.savez_compressed(tmp_path / "packed.npz", x=array)
    for opened in (
        open_npy(str(tmp_path / "x.npy")),
        *open_npz(str(tmp_path / "stored.npz"), ("x",)),
        *open_npz(str(tmp_path / "packed.npz"), ("x",)),
    ):
        found = opened.read(first, count)
        assert (opened.rows, opened.width, found.dtype) == (rows, width, np.dtype(dtype).newbyteorder("="))
        np.testing.assert_array_equal(found, array[first : first + count])
        opened.close()


def test_one_dimension_is_one_column(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4))
    assert open_npy(str(tmp_path / "x.npy")).read(1, 2).tolist() == [[1], [2]]


@pytest.mark.parametrize("extra", [b"", b"\x99\x99\x04\x00abcd", b"\x99\x99\x64\x00" + b"x" * 100])
def test_a_stored_member_begins_where_its_local_header_says(tmp_path: Path, extra: bytes) -> None:
    # DATASETS 28: the stock reader assumes an extra field of 20 bytes
    array = np.arange(12, dtype=np.int32).reshape(4, 3)
    info = zipfile.ZipInfo("0.npy")
    info.extra = extra
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("note.txt", b"no array")
        archive.writestr(info, npy_bytes(array))
    (found,) = open_npz(str(tmp_path / "x.npz"), ("0",))
    np.testing.assert_array_equal(found.read(1, 3), array[1:])


def test_a_name_that_is_there_twice(tmp_path: Path) -> None:
    # L103
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", npy_bytes(np.zeros(1)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.npy", npy_bytes(np.ones(1)))
    with pytest.raises(CorruptShardError, match=r"a\.npy is there twice"):
        open_npz(str(tmp_path / "x.npz"), ("b",))


def test_pickles_are_refused_unread(tmp_path: Path) -> None:
    array = np.array([{"a": 1}, None], object)
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array)
    for opened in (lambda: open_npy(str(tmp_path / "x.npy")), lambda: open_npz(str(tmp_path / "x.npz"), ("x",))):
        with pytest.raises(CorruptShardError, match="an array of object, where numbers are expected"):
            opened()


def test_what_is_no_array_of_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 2, 2)))
    with pytest.raises(CorruptShardError, match=r"shape \(2, 2, 2\)"):
        open_npy(str(tmp_path / "x.npy"))
    (tmp_path / "x.npy").write_bytes(b"hello")
    with pytest.raises(CorruptShardError, match="not an array"):
        open_npy(str(tmp_path / "x.npy"))


@pytest.mark.parametrize("kind", ["npy", "npz", "packed"])
def test_every_cut_is_an_error(tmp_path: Path, kind: str) -> None:
    array = np.arange(300, dtype=np.int32).reshape(100, 3)
    path = tmp_path / "x"
    write: Any = {"npy": np.save, "npz": np.savez, "packed": np.savez_compressed}[kind]
    with open(path, "wb") as file:
        write(file, array)
    data = path.read_bytes()
    for end in [*range(0, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:end])
        with pytest.raises(CorruptShardError):
            open_npy(str(path)) if kind == "npy" else open_npz(str(path), ("arr_0",))


def test_a_flipped_bit_in_a_packed_member(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(10_000))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / "x.npz").write_bytes(bytes(data))
    with pytest.raises(CorruptShardError, match="damaged"):
        open_npz(str(tmp_path / "x.npz"), ("x",))


def test_a_header_that_promises_more_than_there_is(tmp_path: Path) -> None:
    data = npy_bytes(np.zeros((10, 2), np.int32)).replace(b"(10, 2)", b"(99, 2)")
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(CorruptShardError, match="99 x 2 values of int32"):
        open_npy(str(tmp_path / "x.npy"))
    (tmp_path / "x.npy").write_bytes(npy_bytes(np.zeros((10, 2), np.int32)) + b"more")
    with pytest.raises(CorruptShardError, match="its header says"):
        open_npy(str(tmp_path / "x.npy"))


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(np.arange(80, dtype="<i4").tobytes())
    records = open_records(str(path), 40)
    assert (records.rows, records.read(1, 1).tolist()) == (2, [list(range(40, 80))])
    records.close()
    path.write_bytes(path.read_bytes() + b"x")
    # HugeCTR#301
    with pytest.raises(CorruptShardError, match="321 bytes are not whole records of 160 bytes") as caught:
        open_records(str(path), 40)
    assert caught.value.rows_salvaged == 2


def test_a_file_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(320))
    records = open_records(str(path), 40)
    path.write_bytes(bytes(100))
    with pytest.raises(CorruptShardError, match="became shorter"):
        records.read(0, 2)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_is_one_kind_of_error_however_a_member_is_packed(tmp_path: Path, method: int) -> None:
    array = np.random.default_rng(1).integers(0, 50, (60, 4))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
        archive.writestr("x.npy", npy_bytes(array))
    np.testing.assert_array_equal(open_npz(str(tmp_path / "x.npz"), ("x",))[0].read(0, 60), array)
    whole = (tmp_path / "x.npz").read_bytes()
    damaged = 0
    for at in range(0, len(whole), 3):
        for byte in (whole[at] ^ 0x10, 0xFF):
            (tmp_path / "x.npz").write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            try:
                open_npz(str(tmp_path / "x.npz"), ("x",))
            except (CorruptShardError, ColumnMismatchError):
                damaged += 1
    assert damaged > len(whole) // 3


def test_a_name_that_is_no_text_is_damage(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(3))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[directory + 9] |= 0x08  # names are UTF-8
    data[directory + 46] = 0xFF
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(CorruptShardError, match="utf-8"):
        open_npz(str(tmp_path / "x.npz"), ("x",))


@pytest.mark.parametrize("text", ["-" * 9000 + "1", "(" * 9000, "[" * 9000, "{" * 5000, "not " * 2000 + "1"])
def test_a_header_that_python_cannot_parse_is_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
    with pytest.raises(CorruptShardError, match="not an array in NumPy's format"):
        open_npy(str(tmp_path / "x.npy"))


class TestBombs:
    """A few bytes that unpack to many."""

    @pytest.fixture
    def unpacked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of the members that are unpacked as a whole."""
        names: list[str] = []
        copy = shutil.copyfileobj

        def copying(source: Any, *rest: Any) -> None:
            names.append(source.name)
            copy(source, *rest)

        monkeypatch.setattr(shutil, "copyfileobj", copying)
        return names

    def test_what_is_not_asked_for_is_left_packed(self, tmp_path: Path, unpacked: list[str]) -> None:
        np.savez_compressed(tmp_path / "x.npz", x=np.arange(3), bomb=np.zeros(10_000_000))
        (array,) = open_npz(str(tmp_path / "x.npz"), ("x",))
        assert array.read(0, 3)[:, 0].tolist() == [0, 1, 2]
        assert unpacked == ["x.npy"]

    def test_nor_is_one_that_is_damaged_looked_at(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("x.npy", npy_bytes(np.arange(3)))
            archive.writestr("other.npy", b"no array")
        (array,) = open_npz(str(tmp_path / "x.npz"), ("x",))
        assert array.rows == 3

    def test_one_of_other_rows_is_refused_unread(self, tmp_path: Path, unpacked: list[str]) -> None:
        np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1_000_000, 2)))
        with pytest.raises(CorruptShardError, match=r"x\.npy has 1000000 rows, but the labels have 3"):
            open_npz(str(tmp_path / "x.npz"), ("x",), rows=3)
        assert unpacked == []

    def test_one_whose_header_says_less_than_it_unpacks_to(self, tmp_path: Path, unpacked: list[str]) -> None:
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", npy_bytes(np.arange(3)) + bytes(10_000_000))
        with pytest.raises(CorruptShardError, match="10000152 bytes, its header says 152"):
            open_npz(str(tmp_path / "x.npz"), ("x",))
        assert unpacked == []

    def test_the_disk_must_have_room_for_all(
        self, tmp_path: Path, unpacked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        np.savez_compressed(tmp_path / "x.npz", x=np.zeros(100), y=np.zeros(100))
        size = 2 * (800 + 128)
        for free, enough in ((size, True), (size - 1, False)):
            monkeypatch.setattr(shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
            if enough:
                assert len(open_npz(str(tmp_path / "x.npz"), ("x", "y"))) == 2
                unpacked.clear()
                continue
            with pytest.raises(OSError, match=rf"x\.npy, y\.npy: {size} bytes when unpacked.*set TMPDIR") as caught:
                open_npz(str(tmp_path / "x.npz"), ("x", "y"))
            assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "x.npz"))
        assert unpacked == []

    def test_a_name_that_is_not_there(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", a=np.zeros(1), b=np.zeros(1))
        with pytest.raises(ColumnMismatchError, match="is no array of this file, which has a, b"):
            open_npz(str(tmp_path / "x.npz"), ("c",))
