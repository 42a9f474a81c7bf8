"""The binary forms of Criteo, from files written byte for byte by the published layouts."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.formats.array_reader import ArrayFiles
from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_arrays import (
    DCNV2_BIN,
    DCNV2_MULTI_HOT_SIZES,
    DCNV2_NPZ,
    DLRM_BIN,
    DLRM_NPZ,
    PACKED_BIN,
    TORCHREC_NPY,
)
from headrace.formats.datasets import DATASETS, open_dataset
from headrace.formats.errors import BadRecordError, ColumnMismatchError, CorruptShardError
from headrace.formats.multi_hot import MultiHotTables
from headrace.formats.reader import FilePosition
from headrace.formats.rows import SourceRange
from headrace.formats.schema import Label, Schema, SchemaError
from tests.support.criteo_text import read_all, rows_of

FLOATS = criteo_schema(dense_dtype="float32", dense_transform="identity")
LISTS = criteo_schema(dense_dtype="float32", dense_transform="identity", multi_hot=True)


def day(folder: Path, number: int, rows: int, *, ids: Any = None, hot: tuple[int, ...] | None = None) -> None:
    """TorchRec's files of a day; ids are 100 * row + feature unless given."""
    first = np.arange(rows)
    np.save(folder / f"day_{number}_labels.npy", (first % 2).astype(np.int32)[:, None])
    np.save(folder / f"day_{number}_dense.npy", (first[:, None] + np.arange(13) / 16).astype(np.float32))
    if hot is None:
        ids = first[:, None] * 100 + np.arange(26) if ids is None else ids
        np.save(folder / f"day_{number}_sparse.npy", ids)
    else:
        members = {str(j): (first[:, None] * 1000 + np.arange(h)).astype(np.int32) for j, h in enumerate(hot)}
        np.savez(folder / f"day_{number}_sparse_multi_hot.npz", **members)


def test_dlrm_bin(tmp_path: Path) -> None:
    # 40 little-endian int32 a row: label, raw dense values, ids
    rows = [(1, *range(13), *range(100, 126)), (0, *[-2] * 13, *[2**31 - 1] * 26)]
    (tmp_path / "train_data.bin").write_bytes(b"".join(struct.pack("<40i", *row) for row in rows))
    reader = ArrayFiles(tmp_path, criteo_schema(), DLRM_BIN)
    assert rows_of(read_all(reader)) == [(0, i, float(row[0]), *row[1:]) for i, row in enumerate(rows)]
    assert (reader.num_rows, reader.rows_in, reader.bytes_in) == (2, 2, 320)
    assert criteo_schema().dense[0].transform == "log1p"  # log(max(x, 0) + 1), taken where DLRM takes it


def test_packed_bin_has_float_dense_values(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(struct.pack("<i13f26i", 1, *[0.5] * 12, -1.25, *range(26)))
    assert rows_of(read_all(ArrayFiles(path, FLOATS, PACKED_BIN))) == [(0, 0, 1.0, *[0.5] * 12, -1.25, *range(26))]


def test_dcnv2_bin_has_912_bytes_a_row(tmp_path: Path) -> None:
    path = tmp_path / "train_data.bin"
    path.write_bytes(struct.pack("<i13f214i", 0, *[0.0] * 13, *range(214)))
    assert path.stat().st_size == 912
    (row,) = rows_of(read_all(ArrayFiles(path, LISTS, DCNV2_BIN)))
    assert row[16:18] == ([0, 1, 2], [3, 4])
    assert [len(ids) for ids in row[16:]] == list(DCNV2_MULTI_HOT_SIZES)
    assert row[-1] == [213]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_dlrm_npz(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "day_0_reordered.npz"
    ids = np.arange(78, dtype=np.int32).reshape(3, 26)
    save(path, X_int=np.ones((3, 13), np.int32), X_cat=np.asfortranarray(ids), y=np.array([1, 0, 1], np.int32))
    found = rows_of(read_all(ArrayFiles(path, criteo_schema(), DLRM_NPZ, batch_rows=2)))
    assert found == [(0, i, float(i != 1), *[1] * 13, *ids[i].tolist()) for i in range(3)]
    save(path, X_int=np.ones((3, 13)), y=np.ones(3))
    with pytest.raises(ColumnMismatchError, match="column 'X_cat': is no array of this file, which has X_int, y"):
        read_all(ArrayFiles(path, criteo_schema(), DLRM_NPZ))


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_torchrec_npy_in_either_dtype(tmp_path: Path, dtype: Any) -> None:
    ids = (np.arange(52).reshape(2, 26) + 7).astype(dtype)
    day(tmp_path, 0, 2, ids=ids)
    day(tmp_path, 10, 1)
    day(tmp_path, 2, 1)
    reader = ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY)
    assert [Path(f).name for f in reader.files] == ["day_0_sparse.npy", "day_2_sparse.npy", "day_10_sparse.npy"]
    rows = rows_of(read_all(reader))
    assert rows[1] == (0, 1, 1.0, *(1 + i / 16 for i in range(13)), *ids[1].tolist())
    assert (len(rows), reader.num_rows, reader.rows_per_file) == (4, 4, (2, 1, 1))


def test_ids_written_through_int32(tmp_path: Path) -> None:
    # P18, dlrm#394: hex ids of 2^31 and more are negative in the old files
    ids = np.array([0x97280556, 2**32 - 1, 5] + [0] * 23, np.uint32).view(np.int32)[None]
    day(tmp_path, 0, 1, ids=ids)
    with pytest.raises(BadRecordError, match=r"line 1, column C1: b'\[-1758984874\]': does not fit into hex32"):
        read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY))
    (row,) = rows_of(read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY, wrap_negative_ids=True)))
    assert row[16:19] == (0x97280556, 2**32 - 1, 5)
    assert read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY, bad_records="skip"))[0].num_rows == 0


def test_a_second_modulo_at_load(tmp_path: Path) -> None:
    # dlrm#53
    day(tmp_path, 0, 2, ids=np.arange(52).reshape(2, 26))
    (row, _) = rows_of(read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY, modulo=10)))
    assert row[16:] == tuple(i % 10 for i in range(26))
    (_, row) = rows_of(read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY, modulo=[1 + i for i in range(26)])))
    assert row[16:] == tuple((26 + i) % (1 + i) for i in range(26))
    with pytest.raises(ValueError, match="2 numbers for 26 features"):
        ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY, modulo=[1, 2])


@pytest.mark.parametrize("form", [TORCHREC_NPY, DCNV2_NPZ])
@pytest.mark.parametrize("listed", [False, True])
def test_a_day_without_one_of_its_files_is_named(tmp_path: Path, form: Any, listed: bool) -> None:
    schema, hot = (FLOATS, None) if form is TORCHREC_NPY else (LISTS, DCNV2_MULTI_HOT_SIZES)
    day(tmp_path, 0, 2, hot=hot)
    day(tmp_path, 1, 2, hot=hot)
    parts = [tmp_path / f"day_1{end}" for end in (form.suffix, *form.siblings)]
    (tmp_path / "README").touch()  # a folder may hold other files

    def names() -> Any:
        return sorted(tmp_path.glob("day_*")) if listed else tmp_path

    kept = {part: part.read_bytes() for part in parts}
    for missing in parts:
        missing.unlink()
        with pytest.raises(FileNotFoundError, match=rf"{missing.name}: is .*_dense\.npy beside it"):
            ArrayFiles(names(), schema, form)
        missing.write_bytes(kept[missing])
    for part in parts[:2]:  # one of the two others alone does not vanish either
        part.unlink()
    with pytest.raises(FileNotFoundError, match=rf"day_1{form.suffix}: is not among the files, but .*day_1_dense\.npy"):
        ArrayFiles(names(), schema, form)
    assert ArrayFiles([f for f in names() if "day_0" in f.name] if listed else f"{tmp_path}/day_0*", schema, form)


def test_a_file_of_another_kind_that_is_named_is_not_left_out(tmp_path: Path) -> None:
    day(tmp_path, 0, 2)
    (tmp_path / "day_1.npz").touch()
    for paths in (
        [tmp_path / "day_0_sparse.npy", tmp_path / "day_1.npz"],
        iter([f"{tmp_path}/*.npy", tmp_path / "day_1.npz"]),
    ):
        with pytest.raises(ValueError, match=r"day_1\.npz: no file of torchrec-npy: .*\*_sparse\.npy with"):
            ArrayFiles(paths, FLOATS, TORCHREC_NPY)
    assert ArrayFiles([tmp_path], FLOATS, TORCHREC_NPY).num_rows == 2
    with pytest.raises(FileNotFoundError, match="an empty list"):
        ArrayFiles([], FLOATS, TORCHREC_NPY)


def test_multi_hot_npz(tmp_path: Path) -> None:
    day(tmp_path, 0, 3, hot=DCNV2_MULTI_HOT_SIZES)
    reader = ArrayFiles(tmp_path, LISTS, DCNV2_NPZ, batch_rows=2)
    rows = rows_of(read_all(reader))
    assert rows[2][16:18] == ([2000, 2001, 2002], [2000, 2001])
    assert [len(ids) for ids in rows[0][16:]] == list(DCNV2_MULTI_HOT_SIZES)
    with pytest.raises(SchemaError, match="'C1' has 3 ids a row: declare it multi_hot"):
        read_all(ArrayFiles(tmp_path, FLOATS, DCNV2_NPZ))


def test_multi_hot_made_of_one_hot_equals_the_materialized_files(tmp_path: Path) -> None:
    hot, sizes = (3, 1, 2) + (1,) * 23, (50,) * 26
    ids = np.random.default_rng(0).integers(0, 2**32, (20, 26))
    day(tmp_path, 0, 20, ids=ids)
    tables = MultiHotTables(hot, sizes)
    found = rows_of(read_all(ArrayFiles(tmp_path, LISTS, TORCHREC_NPY, multi_hot=tables)))
    members = {str(j): tables.expand(j, ids[:, j].astype(np.uint64)).astype(np.int32) for j in range(26)}
    np.savez(tmp_path / "day_0_sparse_multi_hot.npz", **members)
    assert found == rows_of(read_all(ArrayFiles(tmp_path, LISTS, DCNV2_NPZ)))
    assert [len(v) for v in found[0][16:]] == list(hot)


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
def test_resume_anywhere_and_select(tmp_path: Path, batch_rows: int) -> None:
    day(tmp_path, 0, 7)
    day(tmp_path, 1, 0)
    day(tmp_path, 2, 4)
    reader = ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY, batch_rows=batch_rows)
    whole = rows_of(read_all(reader))
    assert [row[:2] for row in whole] == [(0, i) for i in range(7)] + [(2, i) for i in range(4)]
    done = 0
    for block in reader.raw_blocks():
        decoded = reader.decode(block)
        done += decoded.rows.num_rows
        position = FilePosition.from_dict(decoded.next_position.to_dict())
        assert rows_of(read_all(reader, start=position)) == whole[done:]
    digest = reader.digest
    reader.select([SourceRange(2, 1, 2)])
    assert rows_of(read_all(reader)) == whole[8:10]
    assert reader.digest != digest


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    day(tmp_path, 0, 3)
    np.save(tmp_path / "day_0_dense.npy", np.zeros((2, 13), np.float32))
    with pytest.raises(CorruptShardError, match=r"2 rows, but the labels in day_0_labels\.npy have 3"):
        read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY))
    day(tmp_path, 0, 3, ids=np.zeros((3, 25), np.int32))
    with pytest.raises(ColumnMismatchError, match="25 a row, expected 26"):
        read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY))
    (tmp_path / "day_0_dense.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"day_0_dense\.npy"):
        ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY)
    with pytest.raises(FileNotFoundError, match=r"no file of dcnv2-npz \(\*_sparse_multi_hot\.npz\)"):
        ArrayFiles(tmp_path, FLOATS, DCNV2_NPZ)


def test_a_sibling_that_changes_is_seen(tmp_path: Path) -> None:
    day(tmp_path, 0, 3)
    reader = ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY)
    np.save(tmp_path / "day_0_labels.npy", np.zeros((4, 1), np.int32))
    with pytest.raises(CorruptShardError, match=r"labels\.npy: changed since it was listed"):
        read_all(reader)


def test_bad_values_are_named(tmp_path: Path) -> None:
    day(tmp_path, 0, 3)
    dense = np.zeros((3, 13), np.float32)
    dense[1, 2] = -np.inf  # dlrm#363: log of a negative value
    np.save(tmp_path / "day_0_dense.npy", dense)
    with pytest.raises(BadRecordError, match="line 2, column I3: b'-inf': not finite"):
        read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY))
    block = read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY, bad_records="skip"))[0]
    assert block.source.ranges == (SourceRange(0, 0, 1), SourceRange(0, 2, 1))


@pytest.mark.parametrize(
    ("values", "offending"),
    [(np.array([0, 2, 1], np.int32), "2"), (np.array([1, -1, 0], np.int8), "-1"), (np.array([0, 0.5, 1]), r"0\.5")],
)
def test_a_label_is_0_or_1_unless_declared_otherwise(tmp_path: Path, values: Any, offending: str) -> None:
    day(tmp_path, 0, 3)
    np.save(tmp_path / "day_0_labels.npy", values[:, None])
    with pytest.raises(BadRecordError, match=rf"line 2, column label: b'{offending}': a label is 0 or 1; .* binary"):
        read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY))
    targets = replace(FLOATS, labels=(Label(name="label", binary=False),))
    (block,) = read_all(ArrayFiles(tmp_path, targets, TORCHREC_NPY))
    assert block.data.column("label").to_pylist() == values.tolist()


def test_without_labels_and_with_another_schema(tmp_path: Path) -> None:
    day(tmp_path, 0, 1)
    schema = criteo_schema(labels=False, dense_dtype="float32")
    (block,) = read_all(ArrayFiles(tmp_path, schema, TORCHREC_NPY))
    assert block.data.num_columns == 39
    with pytest.raises(SchemaError, match="the schema declares 0, 0 and 0"):
        ArrayFiles(tmp_path, Schema(), TORCHREC_NPY)


def test_every_form_is_a_dataset_by_name(tmp_path: Path) -> None:
    day(tmp_path, 0, 2)
    rows = rows_of(read_all(open_dataset("criteo-torchrec-npy", tmp_path, dim=4)))
    assert len(rows) == 2
    forms = [name for name in DATASETS if name.endswith(("-bin", "-npz", "-npy"))]
    assert forms == [
        "criteo-dlrm-bin", "criteo-packed-bin", "criteo-dcnv2-bin", "criteo-dlrm-npz", "criteo-torchrec-npy",
        "criteo-dcnv2-npz",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="dataset 'x' is unknown; known: criteo-kaggle"):
        open_dataset("x", tmp_path)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.bool_])
def test_ids_are_integers(tmp_path: Path, dtype: Any) -> None:
    # DATASETS 26: an id that went through a float is not the id; nor are 1.5 and -3.0 ids
    np.save(tmp_path / "day_0_labels.npy", np.zeros((2, 1), np.int32))
    np.save(tmp_path / "day_0_dense.npy", np.zeros((2, 13), np.float32))
    np.save(tmp_path / "day_0_sparse.npy", np.full((2, 26), 1.5).astype(dtype))
    with pytest.raises(ColumnMismatchError, match=r"day_0_sparse\.npy, column 'ids': values of .*: ids are integers"):
        read_all(ArrayFiles(tmp_path, FLOATS, TORCHREC_NPY))
    ids = {str(j): np.zeros((2, h), np.int32 if j else dtype) for j, h in enumerate(DCNV2_MULTI_HOT_SIZES)}
    np.savez(tmp_path / "day_0_sparse_multi_hot.npz", **ids)
    with pytest.raises(ColumnMismatchError, match="ids are integers"):
        read_all(ArrayFiles(tmp_path, LISTS, DCNV2_NPZ))


def write_split(folder: Path, rows: int) -> None:
    """NVIDIA's post-split form, byte by byte: row r has the label r % 2, dense r + i / 4, ids that need their types."""
    folder.mkdir(exist_ok=True)
    (folder / "label.bin").write_bytes(bytes(r % 2 for r in range(rows)))
    dense = [struct.pack("<13e", *(r + i / 4 for i in range(13))) for r in range(rows)]
    (folder / "numerical.bin").write_bytes(b"".join(dense))
    for i in range(26):
        code, first = (("<b", 100), ("<h", 32_000), ("<i", 2**31 - 1000))[i % 3]
        (folder / f"cat_{i}.bin").write_bytes(b"".join(struct.pack(code, first + i - r) for r in range(rows)))


def test_nvidia_s_split_form(tmp_path: Path) -> None:
    write_split(tmp_path / "train", 3)
    reader = open_dataset("criteo-nvidia-split", tmp_path / "train", batch_rows=2)
    assert (reader.num_rows, [Path(f).name for f in reader.files]) == (3, ["label.bin"])
    ids = [(100 + i, 32_000 + i, 2_147_482_648 + i)[i % 3] for i in range(26)]
    assert rows_of(read_all(reader)) == [
        (0, r, float(r == 1), *(r + i / 4 for i in range(13)), *(v - r for v in ids)) for r in range(3)
    ]
    assert len(reader.identity()[0]) == 28  # every file counts as a source
    (tmp_path / "train" / "cat_25.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"cat_25\.bin"):
        read_all(open_dataset("criteo-nvidia-split", tmp_path / "train"))


@pytest.mark.parametrize(
    ("name", "extra", "message"),
    [
        ("label.bin", 1, r"numerical\.bin: 5 rows, but the labels in label\.bin have 6|cat_0\.bin: 5 bytes are not 6"),
        ("numerical.bin", 1, r"numerical\.bin: 131 bytes are not whole rows of 26 bytes"),
        ("numerical.bin", 26, r"numerical\.bin: 6 rows, but the labels in label\.bin have 5"),
        ("cat_1.bin", 1, r"cat_1\.bin: 11 bytes are not 5 integers of 1, 2 or 4 bytes"),
        ("cat_2.bin", -20, r"cat_2\.bin: 0 bytes are not 5 integers"),
    ],
)
def test_files_of_a_split_that_do_not_belong_together(tmp_path: Path, name: str, extra: int, message: str) -> None:
    write_split(tmp_path, 5)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data + bytes(extra) if extra > 0 else data[:extra])
    with pytest.raises(CorruptShardError, match=message):
        read_all(open_dataset("criteo-nvidia-split", tmp_path))
    write_split(tmp_path, 0)
    assert read_all(open_dataset("criteo-nvidia-split", tmp_path)) == []
