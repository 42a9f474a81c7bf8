"""Features under everything that a schema says of them, against a model row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Dense, Label, Schema, Sparse
from headrace.ingest.features import feature_column

IDS = st.none() | st.integers(0, 2**64 - 1)
LISTS = st.lists(st.none() | st.lists(IDS, max_size=6), min_size=1, max_size=12)


def block(**columns: pa.Array) -> RowBlock:
    data = pa.RecordBatch.from_pydict(columns)
    return RowBlock(data, Source(("a.tsv",), (SourceRange(0, 0, data.num_rows),)))


def rows_of(rows: RowBlock, schema: Schema, name: str) -> list[list[int | None]]:
    """What the index is given: the ids of each row, None for the missing value."""
    feature = next(s for s in schema.sparse if s.name == name)
    ragged = feature_column(rows, schema, feature, 0)
    values = np.asarray(ragged.column.values).astype(object)
    if ragged.column.missing is not None:
        values[ragged.column.missing] = None
    lengths = np.ones(rows.num_rows, int) if ragged.lengths is None else ragged.lengths
    return [part.tolist() for part in np.split(values, np.cumsum(lengths)[:-1])]


def model(row: list[int | None] | None, feature: Sparse) -> list[int | None]:
    ids = [None] if row is None else list(row)
    if feature.modulo is not None:
        ids = [None if i is None else i % feature.modulo for i in ids]
    if feature.missing == "drop":
        ids = [i for i in ids if i is not None]
    if feature.missing == "zero":
        ids = [0 if i is None else i for i in ids]
    if feature.max_length is not None:
        ids = ids[: feature.max_length] if feature.keep == "first" else ids[max(0, len(ids) - feature.max_length) :]
    return ids


@settings(deadline=None)
@given(
    LISTS,
    st.sampled_from(["key", "drop", "zero"]),
    st.none() | st.integers(1, 7),
    st.sampled_from(["first", "last"]),
    st.none() | st.sampled_from([1, 7, 2**32, 2**63]),
)
def test_lists_are_cut_and_reduced(rows: Any, missing: Any, max_length: Any, keep: Any, modulo: Any) -> None:
    keep = keep if max_length else "last"
    feature = Sparse(
        name="h", encoding="uint64", multi_hot=True, missing=missing, max_length=max_length, keep=keep, modulo=modulo
    )
    data = block(h=pa.array(rows, pa.list_(pa.uint64())))
    assert rows_of(data, Schema(sparse=(feature,)), "h") == [model(row, feature) for row in rows]
    part = RowBlock(data.data.slice(1), data.source.slice(1, data.num_rows - 1))  # offsets of a slice do not begin at 0
    assert rows_of(part, Schema(sparse=(feature,)), "h")[: part.num_rows] == [model(row, feature) for row in rows[1:]]


def test_a_history_keeps_its_newest_ids() -> None:
    lists = pa.array([[1, 2, 3, 4, 5], [6], [], None], pa.list_(pa.uint64()))
    last = Sparse(name="h", encoding="uint64", multi_hot=True, missing="drop", max_length=2)
    first = Sparse(name="h", encoding="uint64", multi_hot=True, missing="drop", max_length=2, keep="first")
    assert rows_of(block(h=lists), Schema(sparse=(last,)), "h") == [[4, 5], [6], [], []]
    assert rows_of(block(h=lists), Schema(sparse=(first,)), "h") == [[1, 2], [6], [], []]


@pytest.mark.parametrize(
    ("encoding", "ids", "modulo", "expected"),
    [
        ("hex32", [0xFFFFFFFF, 7], 5, [0, 2]),
        ("hex32", [0xFFFFFFFF], 2**32, [0xFFFFFFFF]),  # nothing to reduce: no table of that size has too few rows
        ("uint64", [2**64 - 1, 2**63], 2**63, [2**63 - 1, 0]),
        ("int64", [-1, 5, -(2**63)], 3, [2, 2, 1]),  # Python's remainder: -1 % 3 == 2
        ("int64", [-1, 5], 2**63, [2**63 - 1, 5]),
    ],
)
def test_modulo_of_each_encoding(encoding: Any, ids: list[int], modulo: int, expected: list[int]) -> None:
    feature = Sparse(name="c", encoding=encoding, modulo=modulo)
    rows = block(c=pa.array(ids, feature.arrow_type))
    assert rows_of(rows, Schema(sparse=(feature,)), "c") == [[e] for e in expected]


USERS = Sparse(name="user", encoding="uint64")
SHOP = Sparse(name="shop")


def crossed(**options: Any) -> Schema:
    return Schema(
        labels=(Label(name="y"),),
        dense=(Dense(name="age", transform="log1p", fill=99),),
        sparse=(
            USERS,
            SHOP,
            Sparse(name="age_bucket", bucket_of="age", boundaries=[18, 30]),  # type: ignore[arg-type]
            Sparse(name="cross", cross=["user", "age_bucket", "shop"], **options),  # type: ignore[arg-type]
        ),
    )


ROWS = block(
    y=pa.array([0.0, 1.0, 0.0, 1.0], pa.float32()),
    age=pa.array([17, 18, None, 64], pa.int64()),
    user=pa.array([5, 5, 5, None], pa.uint64()),
    shop=pa.array([1, None, 1, 1], pa.uint32()),
)


def test_buckets_are_of_the_raw_value_and_missing_where_it_is() -> None:
    assert rows_of(ROWS, crossed(), "age_bucket") == [[0], [1], [None], [2]]


def test_a_cross_takes_missing_parts_as_values_unless_they_are_refused() -> None:
    key = rows_of(ROWS, crossed(), "cross")
    assert len({row[0] for row in key}) == 4
    assert None not in {row[0] for row in key}
    dropped = rows_of(ROWS, crossed(missing="drop"), "cross")
    assert dropped == [key[0], [], [], []]
    with pytest.raises(ValueError, match=r"a\.tsv: row 1, column 'cross': missing"):
        rows_of(ROWS, crossed(missing="raise"), "cross")


def test_a_cross_modulo_a_number_of_buckets() -> None:
    key, reduced = (rows_of(ROWS, crossed(modulo=m), "cross") for m in (None, 1000))
    assert reduced == [[row[0] % 1000] for row in key]  # type: ignore[operator]


def test_what_stands_under_a_null_does_not_count() -> None:
    def rows(junk: int) -> RowBlock:
        age = pa.Array.from_buffers(
            pa.int64(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([junk, 20]))], 1
        )  # row 0 is null
        return block(
            y=pa.array([0.0, 0.0], pa.float32()), age=age, user=pa.array([1, 1], pa.uint64()),
            shop=pa.array([1, 1], pa.uint32()),
        )  # fmt: skip

    assert rows_of(rows(0), crossed(), "cross") == rows_of(rows(10**9), crossed(), "cross")
