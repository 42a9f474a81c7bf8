"""The native conversion of row blocks is that of `columns.py`, column by column."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Dense, Label, Schema, Sparse
from headrace.ingest.columns import dense_matrix, id_column, label_matrix
from headrace.ingest.row_arrays import RowConverter

ENCODINGS = ("hex32", "uint64", "int64", "hex64")


def schema(labels: int = 1, missing: str = "key") -> Schema:
    return Schema(
        labels=tuple(Label(name=f"y{i}") for i in range(labels)),
        dense=(
            Dense(name="plain"),
            Dense(name="logs", transform="log1p", fill=-3.0),
            Dense(name="float", dtype="float32", fill=0.5),
            Dense(name="float logs", dtype="float32", transform="log1p", fill=7.0),
        ),
        sparse=tuple(Sparse(name=e, encoding=e, missing=missing) for e in ENCODINGS),  # type: ignore[arg-type]
    )


def block(of: Schema, rows: int, rng: random.Random, nulls: float) -> RowBlock:
    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < nulls else v for v in values], kind)

    whole = [rng.choice([0, 1, -1, 5, 16383, 16384, 10**6, 2**53 + 1, -(2**63), 2**63 - 1]) for _ in range(rows)]
    floats = [rng.choice([0.0, -0.0, -2.5, 1e-30, 3.4e38, float(rng.random())]) for _ in range(rows)]
    arrays = [pa.array([float(rng.random() < 0.5) for _ in range(rows)], pa.float32()) for _ in of.labels]
    arrays += [column(floats if d.dtype == "float32" else whole, d.arrow_type) for d in of.dense]
    for s in of.sparse:
        low, high = (-(2**63), 2**63) if s.encoding == "int64" else (0, 2**32 if s.encoding == "hex32" else 2**64)
        arrays.append(column([rng.randrange(low, high) for _ in range(rows)], s.arrow_type))
    data = pa.RecordBatch.from_arrays(arrays, schema=of.arrow_schema(labels=bool(of.labels)))
    return RowBlock(data, Source(("a.tsv",), (SourceRange(0, 10, rows),)))


def expect_the_same(of: Schema, rows: RowBlock) -> None:
    found = RowConverter(of).convert(rows)
    np.testing.assert_array_equal(found.dense, dense_matrix(rows, of.dense))
    labels = label_matrix(rows, of)
    assert (found.labels is None) == (labels is None)
    if labels is not None:
        np.testing.assert_array_equal(found.labels, labels)
    for feature, (s, ragged) in enumerate(zip(of.sparse, found.ids, strict=True)):
        twin = id_column(rows, s, feature)
        assert ragged.column.table == feature
        assert ragged.column.values.dtype == twin.column.values.dtype
        masks = [np.zeros(len(r.column.values), bool) if r.column.missing is None else r.column.missing
                 for r in (ragged, twin)]  # fmt: skip
        np.testing.assert_array_equal(*masks)
        assert (ragged.column.missing is None) == (twin.column.missing is None)
        np.testing.assert_array_equal(ragged.column.values[~masks[0]], twin.column.values[~masks[1]])
        assert (ragged.lengths is None) == (twin.lengths is None)
        if twin.lengths is not None:
            np.testing.assert_array_equal(ragged.lengths, twin.lengths)


@pytest.mark.parametrize("missing", ["key", "drop"])
@pytest.mark.parametrize("labels", [0, 1, 2])
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_parts_and_slices_are_converted_as_one_column_by_column(missing: str, labels: int, nulls: float) -> None:
    rng, of = random.Random(7), schema(labels, missing)
    for rows in (0, 1, 7, 8, 9, 65, 700):
        parts = [block(of, rows + 20, rng, nulls).slice(rng.randrange(20), rows) for _ in range(rng.randrange(1, 4))]
        expect_the_same(of, RowBlock.concat(parts))


def test_what_a_transform_made_is_converted_too() -> None:
    of = schema()
    rows = block(of, 20, random.Random(1), 0.2)
    names = rows.data.schema.names[::-1]
    other = RowBlock(rows.data.select(names).append_column("more", pa.array([1] * 20)), rows.source)
    expect_the_same(of, other)
    wider = rows.data.set_column(
        1, "plain", rows.data.column("plain").cast(pa.int64()).fill_null(3).cast(pa.int32(), safe=False)
    )
    expect_the_same(of, RowBlock(wider, rows.source))


@pytest.mark.parametrize(
    ("column", "value", "kind", "message"),
    [
        ("y0", None, pa.float32(), r"a\.tsv: row 12, column 'y0': the label is missing"),
        ("y0", float("nan"), pa.float32(), r"a\.tsv: row 12, column 'y0': nan is not finite"),
        ("float", float("inf"), pa.float32(), r"a\.tsv: row 12, column 'float': inf is not finite"),
        ("float logs", float("nan"), pa.float32(), r"a\.tsv: row 12, column 'float logs': nan is not finite"),
    ],
)
def test_rows_are_refused_in_the_same_words(column: str, value: Any, kind: pa.DataType, message: str) -> None:
    of = schema()
    rows = block(of, 5, random.Random(2), 0.0)
    at = rows.data.schema.get_field_index(column)
    values = rows.data.column(at).to_pylist()
    values[2] = value
    changed = RowBlock(rows.data.set_column(at, rows.data.schema.field(at), pa.array(values, kind)), rows.source)
    with pytest.raises(ValueError, match=message):
        RowConverter(of).convert(changed)


def test_a_missing_id_is_refused_where_the_schema_says_so() -> None:
    of = schema(missing="raise")
    with pytest.raises(ValueError, match=r"a\.tsv: row 1\d, column 'hex32': missing"):
        RowConverter(of).convert(block(of, 9, random.Random(3), 0.9))


def test_dense_by_the_rule_of_mlperf() -> None:
    of = Schema(dense=(Dense(name="x", transform="log1p"),))
    data = pa.RecordBatch.from_pydict({"x": pa.array([0, -5, 1, 16383, 16384, 2**40, None], pa.int64())})
    found = RowConverter(of).convert(RowBlock(data, Source(("a",), (SourceRange(0, 0, 7),)))).dense[:, 0]
    assert found.tolist() == [np.float32(v) for v in (0, 0, np.log(2.0), np.log(16384.0), np.log(16385.0),
                                                      np.log(2.0**40 + 1), 0)]  # fmt: skip


def test_joined_rows_are_rows() -> None:
    of = schema()
    rng = random.Random(4)
    parts = [block(of, n, rng, 0.1) for n in (3, 4)]
    joined = RowBlock.concat(parts)
    assert (len(joined.parts), joined.num_rows, joined.source.num_rows) == (2, 7, 7)
    assert joined.data.equals(pa.concat_batches([p.data for p in parts]))
    assert len(joined.parts) == 1
    again = RowBlock.concat([RowBlock.concat(parts), parts[0]])
    assert [p.num_rows for p in again.parts] == [3, 4, 3]
    assert again.slice(2, 3).data.equals(again.data.slice(2, 3))
