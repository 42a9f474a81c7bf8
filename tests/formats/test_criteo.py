"""The Criteo schema, and real files against an independent parse."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.errors import BadRecordError
from tests.support.criteo_text import read_all, split_rows


def test_the_schema_has_the_columns_of_the_files() -> None:
    schema = criteo_schema()
    types = {field.name: field.type for field in schema.arrow_schema()}
    assert list(types) == ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    assert list(types.values()) == [pa.float32()] + [pa.int64()] * 13 + [pa.uint32()] * 26
    assert [table.name for table in schema.tables] == [f"C{i}" for i in range(1, 27)]
    assert len(schema.groups) == 1
    assert criteo_schema() == schema


def test_options_reach_the_columns_and_tables() -> None:
    schema = criteo_schema(dim=8, optimizer="sgd", dense_transform="identity", missing="drop", labels=False)
    assert schema.labels == ()
    assert {table.layout_key for table in schema.tables} == {(8, "float32", "sgd")}
    assert {dense.transform for dense in schema.dense} == {"identity"}
    assert {sparse.missing for sparse in schema.sparse} == {"drop"}
    assert {dense.transform for dense in criteo_schema().dense} == {"log1p"}


FILES = [
    ("criteo_kaggle/wideresdnn_train.tsv", 7200),
    ("criteo_kaggle/wideresdnn_dev.tsv", 409),
    ("criteo_kaggle/wideresdnn_test.tsv", 391),
    ("criteo_terabyte/day_11_first_3k_rows_original.tsv", 3000),
]


@pytest.mark.parametrize(("name", "rows"), FILES)
@pytest.mark.parametrize("block_bytes", [10_000, 1 << 20])
def test_real_files_equal_an_independent_parse(shared_data: Path, name: str, rows: int, block_bytes: int) -> None:
    reader = CriteoFiles(shared_data / name, criteo_schema(), block_bytes=block_bytes)
    found = [row for block in read_all(reader) for row in block.data.to_pylist()]
    assert len(found) == reader.rows_in == rows
    assert found == split_rows((shared_data / name).read_bytes())


def test_the_first_rows_literally(shared_data: Path) -> None:
    reader = CriteoFiles(shared_data / "criteo_kaggle" / "wideresdnn_train.tsv", criteo_schema())
    first, *_, third = (list(row.values()) for row in read_all(reader)[0].data.slice(0, 3).to_pylist())
    assert first[:14] == [0.0, 1, 1, 5, 0, 1382, 4, 15, 2, 181, 1, 2, None, 2]
    assert first[14:18] == [0x68FD1E64, 0x80E26C9B, 0xFB936136, 0x7B4723C4]
    assert first[34:] == [0x07B5194C, None, 0x3A171ECB, 0xC5C50484, 0xE8B83407, 0x9727DD16]
    assert third[:14] == [0.0, 2, 0, 1, 14, 767, 89, 4, 2, 245, 1, 3, 3, 45]
    assert third[-2:] == [None, None]  # the last field of the line is empty
    reader = CriteoFiles(shared_data / "criteo_terabyte", criteo_schema())
    row = list(read_all(reader)[0].data.slice(1, 1).to_pylist()[0].values())
    assert row[:14] == [0.0, 118, None, 11, None, None, 0, 0, 1, 15, 0, None, 411, 15]
    assert row[14:16] == [0x0EDE8ACC, 0x56CE319E]


def test_statistics_that_others_published(shared_data: Path) -> None:
    # DATASETS 1.1, first 8,000 rows: CTR 0.216, I2 alone is negative (800 rows), 39 % of the id fields (empty ones
    # counted) are >= 2^31; missing I12 .777, C22 .817
    paths = [shared_data / "criteo_kaggle" / f"wideresdnn_{part}.tsv" for part in ("train", "dev", "test")]
    rows = [row for block in read_all(CriteoFiles(paths, criteo_schema())) for row in block.data.to_pylist()]
    assert len(rows) == 8000
    assert sum(row["label"] for row in rows) / 8000 == pytest.approx(0.216, abs=5e-4)
    negative = {name for row in rows for name in row if name.startswith("I") and (row[name] or 0) < 0}
    assert negative == {"I2"}
    assert sum(row["I2"] < 0 for row in rows) == 800
    ids = [row[f"C{i}"] for row in rows for i in range(1, 27)]
    assert sum((i or 0) >= 2**31 for i in ids) / len(ids) == pytest.approx(0.39, abs=0.005)
    assert sum(row["I12"] is None for row in rows) / 8000 == pytest.approx(0.777, abs=5e-4)
    assert sum(row["C22"] is None for row in rows) / 8000 == pytest.approx(0.817, abs=5e-4)


@pytest.mark.parametrize("change", ["crlf", "no final newline", "byte order mark", "upper case", "gzip"])
def test_the_same_rows_in_another_dress(shared_data: Path, tmp_path: Path, change: str) -> None:
    # L73
    data = (shared_data / "criteo_kaggle" / "wideresdnn_dev.tsv").read_bytes()
    changed = {
        "crlf": data.replace(b"\n", b"\r\n"),
        "no final newline": data[:-1],
        "byte order mark": b"\xef\xbb\xbf" + data,
        "upper case": data.upper(),
        "gzip": gzip.compress(data),
    }[change]
    path = tmp_path / ("x.gz" if change == "gzip" else "x")
    path.write_bytes(changed)
    found = [
        row
        for block in read_all(CriteoFiles(path, criteo_schema(), block_bytes=5000))
        for row in block.data.to_pylist()
    ]
    assert found == split_rows(data)


@pytest.mark.parametrize("name", ["deepctr_criteo_sample.txt", "ycjuan_train.tiny.csv"])
def test_comma_separated_derivatives_are_refused_at_line_1(shared_data: Path, name: str) -> None:
    # DATASETS "Criteo text" 6
    with pytest.raises(BadRecordError, match=r"1 columns where the schema declares 40.*commas") as caught:
        read_all(CriteoFiles(shared_data / "criteo_kaggle" / name, criteo_schema()))
    assert caught.value.line == 1


def test_rows_without_the_label_column(shared_data: Path, tmp_path: Path) -> None:
    # P20: the layout of test.txt
    data = (shared_data / "criteo_kaggle" / "wideresdnn_dev.tsv").read_bytes()
    (tmp_path / "test.txt").write_bytes(b"".join(line.split(b"\t", 1)[1] for line in data.splitlines(keepends=True)))
    schema = criteo_schema(labels=False)
    found = [row for block in read_all(CriteoFiles(tmp_path / "test.txt", schema)) for row in block.data.to_pylist()]
    expected = split_rows(data)
    for row in expected:
        del row["label"]
    assert found == expected
    with pytest.raises(BadRecordError, match=r"39 columns where the schema declares 40.*without label"):
        read_all(CriteoFiles(tmp_path / "test.txt", criteo_schema()))
