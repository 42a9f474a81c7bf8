"""Arrow columns to arrays: no value passes through a float, slices and nulls are honoured."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Dense, Label, Schema, Sparse
from headrace.ingest.columns import dense_matrix, id_column, label_matrix


def block(**columns: pa.Array) -> RowBlock:
    data = pa.RecordBatch.from_pydict(columns)
    return RowBlock(data, Source(("a.tsv",), (SourceRange(0, 10, data.num_rows),)))


def test_ids_above_2_to_53_beside_a_null_stay_exact():  # L87, L79
    ids = [2**64 - 1, None, 2**53 + 1, 0]
    ragged = id_column(block(c=pa.array(ids, pa.uint64())), Sparse(name="c", encoding="uint64"), 3)
    assert ragged.lengths is None
    assert ragged.column.table == 3
    assert ragged.column.values[[0, 2, 3]].tolist() == [2**64 - 1, 2**53 + 1, 0]
    assert ragged.column.missing.tolist() == [False, True, False, False]


def test_negative_ids_keep_their_bits():  # P17
    ragged = id_column(block(c=pa.array([-1, -(2**63)], pa.int64())), Sparse(name="c", encoding="int64"), 0)
    assert ragged.column.values.tolist() == [2**64 - 1, 2**63]


def test_missing_dropped_gives_empty_bags():
    ragged = id_column(block(c=pa.array([7, None, 8], pa.uint32())), Sparse(name="c", missing="drop"), 0)
    assert ragged.column.values.tolist() == [7, 8]
    assert ragged.lengths.tolist() == [1, 0, 1]


def test_missing_refused_names_file_row_and_column():
    with pytest.raises(ValueError, match=r"a\.tsv: row 11, column 'c': missing"):
        id_column(block(c=pa.array([7, None], pa.uint32())), Sparse(name="c", missing="raise"), 0)


LISTS = pa.array([[1, 2], [], None, [None, 3]], pa.list_(pa.uint32()))


@pytest.mark.parametrize(
    ("policy", "ids", "missing", "lengths"),
    [
        ("key", [1, 2, 0, 0, 3], [False, False, True, True, False], [2, 0, 1, 2]),
        ("drop", [1, 2, 3], None, [2, 0, 0, 1]),
    ],
)
@pytest.mark.parametrize("offset", [0, 1])
def test_multi_hot_with_nulls(policy, ids, missing, lengths, offset):  # P33, L95
    array = pa.concat_arrays([pa.array([[9]] * offset, LISTS.type), LISTS]).slice(offset)
    ragged = id_column(block(c=array), Sparse(name="c", multi_hot=True, missing=policy), 0)
    masked = ragged.column.values.copy()
    if ragged.column.missing is not None:
        masked[ragged.column.missing] = 0
    assert masked.tolist() == ids
    assert (None if ragged.column.missing is None else ragged.column.missing.tolist()) == missing
    assert ragged.lengths.tolist() == lengths


def test_dense_fill_then_transform():  # L67: missing is not 0 unless it is declared so
    columns = (
        Dense(name="a", fill=-3.0),
        Dense(name="b", fill=5.0, transform="log1p"),
        Dense(name="c", dtype="float32"),
    )
    matrix = dense_matrix(
        block(
            a=pa.array([2**31, None], pa.int64()),  # L69
            b=pa.array([None, -3], pa.int64()),
            c=pa.array([0.5, -0.5], pa.float32()),
        ),
        columns,
    )
    assert matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix, np.array([[2**31, np.log1p(5.0), 0.5], [-3, 0.0, -0.5]], np.float32))


def test_a_dense_value_that_is_not_finite_names_its_row():
    with pytest.raises(ValueError, match=r"a\.tsv: row 11, column 'x': nan is not finite"):
        dense_matrix(block(x=pa.array([1.0, float("nan")], pa.float32())), (Dense(name="x", dtype="float32"),))


def test_labels_are_a_vector_a_matrix_or_none():
    one = Schema(labels=(Label(name="y"),))
    two = Schema(labels=(Label(name="y"), Label(name="z")))
    y, z = pa.array([1, 0], pa.float32()), pa.array([0, 1], pa.float32())
    assert label_matrix(block(y=y), one).tolist() == [1, 0]
    assert label_matrix(block(y=y, z=z), two).tolist() == [[1, 0], [0, 1]]
    assert label_matrix(block(x=y), Schema()) is None


def test_a_label_that_is_missing_or_gone_is_refused():
    schema = Schema(labels=(Label(name="y"),))
    with pytest.raises(ValueError, match=r"a\.tsv: row 11, column 'y': the label is missing"):
        label_matrix(block(y=pa.array([1, None], pa.float32())), schema)
    with pytest.raises(ValueError, match=r"a\.tsv: row 10: no column 'y', which the schema declares; there are x"):
        label_matrix(block(x=pa.array([1], pa.float32())), schema)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([True]), pa.array(["a"]), pa.array([None]), pa.array([[1]]), pa.array([1.5]),
        pa.array([1], pa.date32()), pa.array([1], pa.time32("s")), pa.array(["a"]).dictionary_encode(),
        pa.array([1], pa.int32()),
    ],
    ids=lambda a: str(a.type),
)  # fmt: skip
def test_ids_of_another_type_name_the_column(array):
    with pytest.raises(TypeError, match=r"a\.tsv: row 10, column 'c': "):
        id_column(block(c=array), Sparse(name="c"), 0)


@pytest.mark.parametrize("array", [pa.array([1], pa.uint32()), pa.array([[1]], pa.list_(pa.uint32(), 1))])
def test_multi_hot_of_another_type_names_the_column(array):
    with pytest.raises(TypeError, match=r"column 'c': .* is no list"):
        id_column(block(c=array), Sparse(name="c", multi_hot=True), 0)


def test_multi_hot_missing_refused_names_the_row():
    array = pa.array([[1], [2, None], None], pa.list_(pa.uint32()))
    with pytest.raises(ValueError, match=r"a\.tsv: row 11, column 'c': missing"):
        id_column(block(c=array), Sparse(name="c", multi_hot=True, missing="raise"), 0)


@pytest.mark.parametrize("array", [pa.array([True]), pa.array([None]), pa.array(["1"])], ids=lambda a: str(a.type))
def test_dense_of_another_type_names_the_column(array):
    with pytest.raises(TypeError, match=r"a\.tsv: row 10, column 'x': "):
        dense_matrix(block(x=array), (Dense(name="x"),))
