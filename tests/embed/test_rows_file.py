"""Rows in a file: round trips, and files that are whole but not of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.embed.rows_file import read_rows, write_rows
from headrace.embed.run_folder import CheckpointError


@pytest.mark.parametrize("n", [0, 1, 70_000])  # more than one record batch
def test_round_trip(tmp_path, n):
    locations, rows = np.arange(n, dtype=np.uint64) << 20, np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    write_rows(tmp_path / "rows", locations, rows)
    back = read_rows(tmp_path / "rows")
    assert [a.dtype for a in back] == [np.uint64, np.float32]
    assert np.array_equal(back[0], locations)
    assert back[1].shape == (n, 3)
    assert np.array_equal(back[1], rows)


def store(path, **columns):
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


PLACES = pa.array([1, 2], pa.uint64())
VECTORS = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4], pa.float32()), 2)
LISTS = pa.list_(pa.float32(), 2)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"location": PLACES}, r"columns \['location'\] are not those"),
        ({"row": VECTORS, "location": PLACES}, "are not those of rows"),
        ({"location": PLACES.cast(pa.int64()), "row": VECTORS}, "locations of int64"),
        ({"location": PLACES, "row": PLACES}, "rows of uint64"),
        ({"location": PLACES, "row": VECTORS.cast(pa.list_(pa.float64(), 2))}, "rows of fixed_size_list"),
        ({"location": pa.array([1, None], pa.uint64()), "row": VECTORS}, "have no nulls"),
        ({"location": PLACES, "row": pa.array([[1, 2], None], LISTS)}, "have no nulls"),
        ({"location": PLACES, "row": pa.array([[1, 2], [3, None]], LISTS)}, "have no nulls"),
    ],
)
def test_other_columns_are_refused(tmp_path, columns, message):
    store(tmp_path / "rows", **columns)
    with pytest.raises(CheckpointError, match=rf"rows: .*{message}"):
        read_rows(tmp_path / "rows")


def test_what_is_no_arrow_file_is_refused(tmp_path):
    write_rows(tmp_path / "rows", np.arange(9, dtype=np.uint64), np.ones((9, 2), np.float32))
    content = (tmp_path / "rows").read_bytes()
    for wrong in (
        b"",
        b"x" * 100,
        content[:-20],
        content[: len(content) // 2],
        b"ARROW1\0\0" + b"\xff" * 400 + b"ARROW1",
    ):
        (tmp_path / "rows").write_bytes(wrong)
        with pytest.raises(CheckpointError, match="rows: not a file of rows"):
            read_rows(tmp_path / "rows")


def test_any_flipped_byte_is_an_error_or_other_values(tmp_path):  # never an exception of another type, or a crash
    write_rows(tmp_path / "rows", np.arange(9, dtype=np.uint64), np.ones((9, 2), np.float32))
    content = (tmp_path / "rows").read_bytes()
    for at in range(len(content)):
        flipped = content[at] ^ (0x80 if at % 2 else 0x01)
        (tmp_path / "rows").write_bytes(content[:at] + bytes([flipped]) + content[at + 1 :])
        try:
            locations, rows = read_rows(tmp_path / "rows")
        except CheckpointError:
            continue
        assert len(locations) == len(rows)
