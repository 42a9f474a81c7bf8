"""Functions of Arrow batches in the loader: same rows, rows left out, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace
from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Dense, Label, Schema, Sparse
from headrace.ingest.arrow_transforms import chain, keep_rows, over_arrow
from headrace.ingest.features import feature_column


def block(values: list[int | None]) -> RowBlock:
    data = pa.RecordBatch.from_pydict({"x": pa.array(values, pa.int64())})
    return RowBlock(data, Source(("a.tsv",), (SourceRange(0, 100, len(values)),)))


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "x", pc.multiply(batch.column("x"), 2))


def test_columns_change_and_rows_stay() -> None:
    result = over_arrow(double)(block([1, None, 3]))
    assert result.data.column("x").to_pylist() == [2, None, 6]
    assert result.source.locate(2) == ("a.tsv", 102)


def test_rows_are_left_out_and_the_source_tells_which() -> None:
    result = keep_rows(lambda batch: pc.greater(batch.column("x"), 1))(block([1, None, 3, 4]))
    assert result.data.column("x").to_pylist() == [3, 4]
    assert [result.source.locate(i)[1] for i in (0, 1)] == [102, 103]
    whole = block([5, 6])
    assert keep_rows(lambda batch: pc.greater(batch.column("x"), 1))(whole) is whole


def test_a_mask_may_be_numpys() -> None:
    result = keep_rows(lambda batch: np.array([True, False, True]))(block([1, 2, 3]))
    assert result.data.column("x").to_pylist() == [1, 3]


def test_in_a_chain() -> None:
    transform = chain(over_arrow(double), keep_rows(lambda batch: pc.greater(batch.column("x"), 4)))
    assert transform(block([1, 2, 3])).data.column("x").to_pylist() == [6]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows became 1; keep_rows"):
        over_arrow(lambda batch: batch.slice(0, 1))(block([1, 2, 3]))
    with pytest.raises(TypeError, match="gave a NoneType, where a RecordBatch"):
        over_arrow(lambda batch: None)(block([1]))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="one value for each of the 2 rows, got a int64 array of 2"):
        keep_rows(lambda batch: batch.column("x"))(block([1, 2]))
    with pytest.raises(TypeError, match=r"each of the 2 rows, got a bool array of 3"):
        keep_rows(lambda batch: np.ones(3, np.bool_))(block([1, 2]))
    with pytest.raises(TypeError, match="each of the 2 rows, got a NoneType: None"):
        keep_rows(lambda batch: None)(block([1, 2]))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="over_arrow: a function is expected, got 3"):
        over_arrow(3)  # type: ignore[arg-type]


def derived_schema() -> Schema:
    base = headrace.criteo_schema()
    return Schema(
        labels=base.labels,
        dense=tuple(Dense(name=d.name, transform="log_plus_3", fill=-2) for d in base.dense),
        sparse=(
            *base.sparse,
            Sparse(name="I2_bucket", bucket_of="I2", bucketing="log_square"),
            Sparse(name="C1xC2xI2", cross=("C1", "C2", "I2_bucket"), modulo=10_007),
        ),
        tables=base.tables,
    )


def test_real_rows_with_derived_features_and_a_transform(shared_data: Path) -> None:
    path = shared_data / "criteo_kaggle" / "wideresdnn_dev.tsv"
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    kept = [line for line in lines if line[1] != ""]
    schema = derived_schema()
    has_i1 = keep_rows(lambda batch: pc.is_valid(batch.column("I1")))
    with headrace.DataLoader(
        str(path), 64, schema=schema, transform=has_i1, window=2, verify_plan=True, num_workers=2, timeout=120
    ) as loader:
        batches = list(loader)
        rows = sum(b.num_rows for b in batches)
        assert (rows, loader.stats()["rows_in"]) == (len(kept), 409)
    position = [s.name for s in schema.sparse].index("I2_bucket")
    buckets = []
    for batch in batches:
        (group,) = batch.groups
        ids = group.unique_ids[group.query_ids][position * batch.num_rows : (position + 1) * batch.num_rows]
        buckets += ids.numpy().view(np.int64).tolist()
    i2 = [int(line[2]) for line in kept]
    assert buckets == [int(np.floor(np.log(v) ** 2)) if v > 2 else v for v in i2]
    dense = np.concatenate([b.dense.numpy() for b in batches])
    assert dense[:, 1].tolist() == [float(np.float32(np.log(max(v, -2) + 3.0))) for v in i2]


def test_a_block_without_rows_has_derived_features(shared_data: Path) -> None:
    schema = Schema(
        labels=(Label(name="y"),), sparse=(Sparse(name="a"), Sparse(name="b"), Sparse(name="c", cross=("a", "b")))
    )
    empty = RowBlock(pa.RecordBatch.from_pylist([], schema.arrow_schema()), Source((), ()))
    assert len(feature_column(empty, schema, schema.sparse[2], 0).column.values) == 0
