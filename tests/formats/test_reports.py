"""What users of other readers reported, as small files with their literal right values; the number is the report's.

Reports about one part of the code stand with the tests of that part; here are those that cut across several.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.formats.avazu import avazu_schema
from headrace.formats.convert import convert
from headrace.formats.criteo import criteo_schema
from headrace.formats.errors import ColumnMismatchError
from headrace.formats.parquet_output import ParquetOutput
from headrace.formats.schema import Dense, Label, Schema, Sparse, Table
from headrace.formats.tar_output import TarOutput
from headrace.ingest.feature_stats import feature_stats
from tests.support.criteo_text import SMALL, read_all, rows_of, write, write_lines
from tests.support.loaders import loader_of

LINE = b"0" + b"\t1" * 13 + b"\t0000000a" * 26 + b"\n"


def test_a_late_value_does_not_change_the_type_of_a_column(tmp_path: Path) -> None:
    # L76, L64: 200,000 ids of digits alone, then one with letters; all are base 16, and none is a double
    path = write(tmp_path / "x", b"68001064\n12345e67\n" * 100_000 + b"ab12cd34\n")
    blocks = read_all(headrace.CriteoFiles(path, Schema(sparse=(Sparse(name="a"),))))
    ids = np.concatenate([np.asarray(block.data.column(0)) for block in blocks])
    assert (ids.dtype, len(ids)) == (np.uint32, 200_001)
    assert (ids[0], ids[1], ids[-1]) == (0x68001064, 0x12345E67, 0xAB12CD34)


def test_a_block_of_mapped_arrays_outlives_the_file(tmp_path: Path) -> None:
    # L98: no view of a file that is closed, or changed, is given out; DATASETS 26: ids above 2^24 and 2^53 are exact
    ids = np.tile(np.array([[2**24 + 1], [2**53 + 1]], np.int64), 26)
    np.save(tmp_path / "day_0_sparse.npy", ids)
    np.save(tmp_path / "day_0_dense.npy", np.full((2, 13), 0.5, np.float32))
    np.save(tmp_path / "day_0_labels.npy", np.array([[1], [0]], np.int32))
    schema = criteo_schema(dense_dtype="float32", dense_transform="identity")
    wide = Schema(
        labels=schema.labels,
        dense=schema.dense,
        sparse=tuple(Sparse(name=s.name, encoding="uint64") for s in schema.sparse),
    )
    found = read_all(headrace.open_dataset("criteo-torchrec-npy", tmp_path, schema=wide))
    for name in ("day_0_sparse.npy", "day_0_dense.npy", "day_0_labels.npy"):
        path = tmp_path / name
        path.write_bytes(bytes(path.stat().st_size))
    assert [row[2:] for row in rows_of(found)] == [
        (1.0, *[0.5] * 13, *[16777217] * 26),
        (0.0, *[0.5] * 13, *[9007199254740993] * 26),
    ]


@pytest.mark.parametrize("output", [ParquetOutput, TarOutput])
def test_a_writer_that_is_given_up_leaves_no_file_with_a_tail_missing(tmp_path: Path, output: type) -> None:
    # L105
    batch = pa.record_batch({"a": pa.array([1, 2, 3])})
    target = tmp_path / f"x.{'tar' if output is TarOutput else 'parquet'}"
    with output(target, batch.schema, compression="none", row_group_rows=2) as writer:
        writer.append(batch)
        assert [path.name.endswith(".partial") for path in tmp_path.iterdir()] == [True]
    assert list(tmp_path.iterdir()) == []


def test_what_becomes_of_missing_values_stands_in_the_manifest(tmp_path: Path) -> None:
    # DATASETS 8: files whose missing values were filled in unknown ways; DATASETS 11: they stay nulls of integers
    schema = Schema(
        labels=SMALL.labels,
        dense=(Dense(name="d1", fill=-7), Dense(name="d2")),
        sparse=(Sparse(name="a"), Sparse(name="b", missing="drop")),
    )
    write(tmp_path / "x.txt", b"1\t\t5\tff\t\n")
    convert("criteo-kaggle", tmp_path / "x.txt", tmp_path / "out", schema=schema)
    table = pq.read_table(tmp_path / "out" / "x.parquet")
    assert table.to_pylist() == [{"y": 1.0, "d1": None, "d2": 5, "a": 255, "b": None}]
    assert table.schema.field("d1").type == pa.int64()
    declared = json.loads((tmp_path / "out" / "manifest.json").read_text())["parameters"]["schema"]
    assert [(c["name"], c["fill"]) for c in declared["dense"]] == [("d1", -7.0), ("d2", 0.0)]
    assert [(c["name"], c["missing"]) for c in declared["sparse"]] == [("a", "key"), ("b", "drop")]


def test_24_days_are_one_stream_under_either_name(tmp_path: Path) -> None:
    # DATASETS 14, 15: day_0 or day_0.gz or .csv; day 10 comes behind day 9; the ids of all days are in one index
    names = [f"day_{day}{('', '.gz', '.csv')[day % 3]}" for day in range(24)]
    for day, name in enumerate(names):
        text = LINE.replace(b"0000000a", b"%08x" % day)
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    reader = headrace.open_dataset("criteo-terabyte", tmp_path / "day_*")
    assert [Path(file).name for file in reader.files] == names
    assert [row[-1] for row in rows_of(read_all(reader))] == list(range(24))
    with loader_of(reader, reader.schema) as loader:
        assert sum(batch.num_rows for batch in loader) == 24
        assert len(loader.index) == 24 * 26


def test_a_column_without_a_value_is_missing_in_every_row(tmp_path: Path) -> None:
    # DATASETS 18: an all-null column, typed or not, and ids that only another file has
    schema = Schema(labels=(Label(name="y"),), sparse=(Sparse(name="a", encoding="uint64"), Sparse(name="b")))
    pq.write_table(pa.table({"y": [0.0, 1.0], "a": [1, 2], "b": pa.nulls(2)}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"y": [0.0], "a": [104], "b": pa.nulls(1, pa.string())}), tmp_path / "1.parquet")
    reader = headrace.ArrowFiles([tmp_path / "0.parquet", tmp_path / "1.parquet"], schema)
    assert [row[2:] for row in rows_of(read_all(reader))] == [(0.0, 1, None), (1.0, 2, None), (0.0, 104, None)]
    with loader_of(reader, schema, batch_size=2) as loader:
        assert [batch.num_rows for batch in loader] == [2, 1]  # DATASETS 24: id 104 was in no vocabulary
        assert len(loader.index) == 4  # 1, 2, 104, and the missing value of b


def test_ids_of_any_size_stay_within_the_index_and_their_feature(tmp_path: Path) -> None:
    # DATASETS 21: an id is never an address; DATASETS 23: one id in two features is two rows
    schema = Schema(
        sparse=(Sparse(name="a", encoding="uint64"), Sparse(name="b", encoding="uint64", multi_hot=True)),
        tables=(Table(name="a", dim=4), Table(name="b", dim=4)),
    )
    ids = [0, 5, 2**31, 2**63, 2**64 - 1]
    lists = pa.array([[5, i] for i in ids], pa.list_(pa.uint64()))
    pq.write_table(pa.table({"a": pa.array(ids, pa.uint64()), "b": lists}), tmp_path / "x.parquet")
    with loader_of(headrace.ArrowFiles(tmp_path / "x.parquet", schema), schema) as loader:
        (batch,) = list(loader)
        assert len(loader.index) == 10
    rows = {
        (int(table), int(np.uint64(unique)))
        for group in batch.groups
        for table, unique in zip(group.unique_tables.tolist(), group.unique_ids.tolist(), strict=True)
    }
    assert len({table for table, unique in rows if unique == 5}) == 2
    assert sum(len(group.unique_ids) for group in batch.groups) == len(rows) == 10


def test_ids_are_integers_of_their_declared_width(tmp_path: Path) -> None:
    # DATASETS 31: no strings in memory; DATASETS 30: 20 digits fit, and two ids that are one double stay two
    kinds = {field.type for field in avazu_schema().arrow_schema(labels=False)}
    assert kinds == {pa.uint32(), pa.uint64()}
    schema = Schema(labels=(Label(name="click"),), sparse=(Sparse(name="id", encoding="uint64"),))
    write(tmp_path / "x.csv", b"id,click\n10000169349117863715,0\n10000169349117863716,1\n")
    found = rows_of(read_all(headrace.open_dataset("avazu", tmp_path / "x.csv", schema=schema)))
    assert [row[3] for row in found] == [10000169349117863715, 10000169349117863716]
    assert float(found[0][3]) == float(found[1][3])


def test_a_derivative_without_a_time_stamp_says_so(tmp_path: Path, shared_data: Path) -> None:
    # DATASETS 33, 41: a split by time of files that have none
    lines = (shared_data / "taobao_display_ad" / "fuxictr_tiny_train.csv").read_text().splitlines()
    without = [line.split(",")[:1] + line.split(",")[2:] for line in lines]
    write(tmp_path / "x.csv", "".join(",".join(line) + "\n" for line in without).encode())
    schema = Schema(dense=(Dense(name="time_stamp"),), sparse=(Sparse(name="userid", encoding="uint64"),))
    with pytest.raises(ColumnMismatchError, match=r"x\.csv, column 'time_stamp': is needed for 'time_stamp', but the"):
        read_all(headrace.open_dataset("taobao-ad", tmp_path / "x.csv", schema=schema))
    assert len(rows_of(read_all(headrace.open_dataset("taobao-ad", tmp_path / "x.csv")))) == 100


def test_rows_that_repeat_and_purchases_without_a_view_are_rows(tmp_path: Path) -> None:
    # DATASETS 37: duplicates, and an item of two categories; DATASETS 38: bought, never seen before
    text = b"1,7,3,pv,1511544070\n1,7,3,pv,1511544070\n1,7,4,fav,1511544071\n2,8,3,buy,1511544072\n"
    reader = headrace.open_dataset("taobao-userbehavior", write(tmp_path / "UserBehavior.csv", text))
    assert [row[2:] for row in rows_of(read_all(reader))] == [
        (0.0, 1, 7, 3),
        (0.0, 1, 7, 3),
        (1.0, 1, 7, 4),
        (1.0, 2, 8, 3),
    ]


def test_a_conversion_holds_a_file_and_no_more(tmp_path: Path) -> None:
    # DATASETS 16: no copy of all days at once; what is done stays done
    for day in range(3):
        write_lines(tmp_path / f"day_{day}", 40, seed=day)
    report = convert("criteo-terabyte", tmp_path / "day_?", tmp_path / "out", row_group_rows=10)
    assert (report.files, report.files_kept, report.rows_out) == (3, 0, 120)
    assert [pq.ParquetFile(tmp_path / "out" / f"day_{day}.parquet").num_row_groups for day in range(3)] == [4, 4, 4]


def test_counts_after_a_filter_are_of_the_rows_that_it_left(tmp_path: Path) -> None:
    # DATASETS 40: of the views alone there are fewer items than of all behaviours
    text = (
        b"1,7,3,pv,1511544070\n1,8,3,buy,1511544071\n2,7,3,pv,1511544072\n2,9,4,cart,1511544073\n"
        b"3,7,4,pv,1511544074\n3,5,4,pv,1511544075\n4,6,4,fav,1511544076\n"
    )
    path = write(tmp_path / "UserBehavior.csv", text)

    def views(block: headrace.RowBlock) -> headrace.RowBlock:
        return block.take(np.flatnonzero(np.asarray(block.data.column("label")) == 0))

    def reader() -> headrace.DelimitedFiles:
        return headrace.open_dataset("taobao-userbehavior", path, block_bytes=40)

    def distinct(report: dict[str, Any]) -> list[tuple[str, int, int]]:
        return [(f["name"], f["cardinality"], f["ids"]) for f in report["sparse"]]

    schema = reader().schema
    everything = feature_stats(headrace.ReadRows(reader()), schema)
    assert (everything["rows"], distinct(everything)) == (7, [("user", 4, 7), ("item", 5, 7), ("category", 2, 7)])
    node = headrace.Map(headrace.ReadRows(reader()), views)
    filtered = feature_stats(node, schema)
    assert (filtered["rows"], distinct(filtered)) == (4, [("user", 3, 4), ("item", 2, 4), ("category", 2, 4)])
    assert filtered["labels"][0]["mean"] == 0.0
    assert node.stats().skipped == 3

    with loader_of(reader(), schema, batch_size=3, transform=views) as loader:
        assert [batch.num_rows for batch in loader] == [3, 1]
        stats = loader.stats()
        assert (stats["rows_in"], stats["rows_skipped"], stats["rows"], stats["ids"]) == (7, 0, 4, 12)
        assert stats["index_rows"] == 3 + 2 + 2
        assert [s.skipped for s in loader.node_stats() if s.name == "Map"] == [3]
        assert stats["unique_share"] == pytest.approx((3 + 1 + 2 + 3) / 12)
