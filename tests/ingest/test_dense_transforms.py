"""Dense transforms: the same value becomes the same whatever is around it, and stays finite."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Dense
from headrace.ingest.columns import dense_matrix
from headrace.ingest.dense_transforms import transformed

LARGEST = float(np.finfo(np.float32).max)
VALUES = st.floats(-LARGEST, LARGEST) | st.integers(-(2**63), 2**63 - 1).map(float)
COLUMNS = [
    Dense(name="x", transform="identity"),
    Dense(name="x", transform="log1p"),
    Dense(name="x", transform="log_plus_3"),
    Dense(name="x", transform="standardise", mean=3.5, std=0.25),
    Dense(name="x", transform="standardise", mean=-1e308, std=5e-324),
]


def twin(value: float, column: Dense) -> float:
    if column.transform == "log1p":
        return math.log1p(max(value, 0.0))
    if column.transform == "log_plus_3":
        return math.log(max(value, -2.0) + 3.0)
    if column.transform == "standardise":
        return min(max((value - column.mean) / column.std, -LARGEST), LARGEST)
    return value


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: f"{c.transform}-{c.std}")
@settings(deadline=None)
@given(values=st.lists(VALUES, min_size=1, max_size=30))
def test_each_value_by_itself_and_finite(values: list[float], column: Dense) -> None:
    found = transformed(np.array(values), column)
    assert np.isfinite(found.astype(np.float32)).all()  # dlrm#363, AFN-AAAI-20#10
    assert found == pytest.approx([twin(v, column) for v in values], rel=1e-14, abs=1e-300)
    alone = [transformed(np.array([v]), column)[0] for v in values]
    assert found.tolist() == alone  # L68: not per file


def block(values: list[float | None], kind: pa.DataType) -> RowBlock:
    data = pa.RecordBatch.from_pydict({"x": pa.array(values, kind)})
    return RowBlock(data, Source(("a.tsv",), (SourceRange(0, 10, len(values)),)))


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ("log1p", [0.0, 0.0, 0.0, math.log(2), math.log(4)]),  # algorithmic-efficiency#103: negatives are zeroed
        ("log_plus_3", [0.0, 0.0, math.log(2), math.log(4), math.log(6)]),  # dlrm#363: -3 is not -inf
    ],
)
def test_literal_values_with_negatives(transform: str, expected: list[float]) -> None:
    found = dense_matrix(block([-3, -2, -1, 1, 3], pa.int64()), (Dense(name="x", transform=transform),))  # type: ignore[arg-type]
    assert found[:, 0].tolist() == np.array(expected, np.float32).tolist()


def test_a_missing_value_is_filled_before_the_transform() -> None:
    column = Dense(name="x", dtype="float32", fill=-2, transform="log_plus_3")
    assert dense_matrix(block([None, 5.0], pa.float32()), (column,)).tolist() == [[0.0], [np.float32(math.log(8))]]
    column = Dense(name="x", fill=10, transform="standardise", mean=10, std=2)
    assert dense_matrix(block([None, 14], pa.int64()), (column,)).tolist() == [[0.0], [2.0]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: f"{c.transform}-{c.std}")
def test_no_transform_hides_what_is_not_finite(value: float, column: Dense) -> None:
    with pytest.raises(ValueError, match=r"a\.tsv: row 11, column 'x': .* is not finite"):
        dense_matrix(block([1.0, value], pa.float64()), (column,))
