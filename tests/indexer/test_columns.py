from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.criteo import criteo_schema
from headrace.indexer.columns import NNZ_LIMIT, check_columns, check_tables
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexTable

TABLES = (IndexTable(10, 0), IndexTable(20, 1))


def test_two_tables_with_one_uid_are_refused() -> None:
    with pytest.raises(ValueError, match="tables 0 and 2 have the same uid 5"):
        check_tables([IndexTable(5, 0), IndexTable(6, 0), IndexTable(5, 1)])


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (IndexTable(-1, 0), ValueError),
        (IndexTable(1 << 32, 0), ValueError),
        (IndexTable(1, -1), ValueError),
        (IndexTable(1, 1 << 16), ValueError),
        (IndexTable(True, 0), TypeError),
        (IndexTable(1.0, 0), TypeError),  # type: ignore[arg-type]
    ],
)
def test_table_numbers_out_of_range_are_refused(table: IndexTable, error: type[Exception]) -> None:
    with pytest.raises(error, match="table 0"):
        check_tables([table])


@pytest.mark.parametrize("tables", ["user", ["user"], [3], criteo_schema(), criteo_schema().tables, 3])
def test_what_is_no_table_is_refused_with_the_way_to_make_some(tables: Any) -> None:
    with pytest.raises(TypeError, match=r"IndexTable\(uid, group\): headrace.index_tables\(schema\)"):
        DIT(tables)


@pytest.mark.parametrize("columns", [[(0, np.arange(2))], [np.arange(2)], {"user": np.arange(2)}])
def test_what_is_no_column_is_refused(columns: Any) -> None:
    with pytest.raises(TypeError, match=r"(column 0 is|columns are) a .*; give a list of IdColumn\(table, values\)"):
        DIT([IndexTable(1, 0)]).index(columns)


def test_more_tables_than_the_entry_can_number_are_refused() -> None:
    tables = [IndexTable(i, 0) for i in range((1 << 16) + 1)]
    with pytest.raises(ValueError, match="65537 tables"):
        check_tables(tables)
    assert len(check_tables(tables[:-1])) == 1 << 16


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (np.zeros(2, np.float32), "float32; .* read the column as integers"),  # P31: no ids through floats
        (np.array([-0.0, np.nan]), "float64; .* read the column as integers"),  # L121
        (np.array([]), r"float64, as np.array\(\[\]\) is; .* np.array\(\[\], np.uint64\) has none"),
        (np.array([], np.float32), "float32; .* read the column as integers"),
        (np.zeros(2, np.bool_), r"bool; .* \.astype\(np\.uint32\)"),
        (np.array([1, None], object), "object; .* and a mask"),  # P33
        (np.array(["a"]), "<U1; .* hash or number"),
        (np.zeros(2, "M8[s]"), "datetime64"),
        (np.ma.array([1, 2], mask=[True, False]), "a masked array; give its .data"),
        ([1, 2], "list; they must be a NumPy or Arrow array"),
        (pa.array([1.0]), "double; .* read the column as integers"),
        (pa.array(["a"]), "string; .* hash or number"),
        (pa.array(["a"]).dictionary_encode(), "dictionary<values=string.* hash or number"),
        (pa.array([1.5]).dictionary_encode(), "dictionary<values=double.* 2.53"),
        (pa.array([Decimal(1)]), r"decimal128.* \.cast\(pa\.int64\(\)\)"),
        (pa.array([True]), "bool"),
        (pa.array([None]), "null"),
        (pa.array([1], pa.date32()), "date32"),
        (pa.chunked_array([["a"]]), "string"),
    ],
)
def test_ids_of_another_kind_are_refused(values: Any, what: str) -> None:
    with pytest.raises(TypeError, match=rf"column 1 \(table 1\) are {what}"):
        check_columns([IdColumn(0, np.zeros(0, np.uint32)), IdColumn(1, values)], TABLES)


@pytest.mark.parametrize("values", [np.zeros((2, 2), np.uint64), np.array(3, np.uint64)])
def test_ids_of_another_shape_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"column 0 have shape .* give .reshape\(-1\)"):
        check_columns([IdColumn(0, values)], TABLES)


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        (np.zeros(2, np.uint8), TypeError("is of uint8; .* give (mask != 0)")),
        (np.zeros(3, np.bool_), ValueError("has shape (3,), and there are 2 ids; give one flag an id")),
        (np.zeros((2, 1), np.bool_), ValueError("has shape (2, 1), and there are 2 ids")),
        ([True, False], TypeError("is a list; .* give np.array(mask, bool)")),
        (pa.array([True, False]), TypeError("is a BooleanArray; .* give .to_numpy(zero_copy_only=False) of it")),
    ],
)
def test_mask_of_another_kind_is_refused_with_the_way_to_make_one(missing: Any, error: Exception) -> None:
    pattern = r"`missing` of column 0 \(table 0\) " + re.escape(str(error)).replace(r"\.\*", ".*")
    with pytest.raises(type(error), match=pattern):
        check_columns([IdColumn(0, np.zeros(2, np.uint64), missing)], TABLES)


@pytest.mark.parametrize("table", [-1, 2])
def test_unknown_table_is_refused(table: int) -> None:
    with pytest.raises(ValueError, match="table of column 0"):
        check_columns([IdColumn(table, np.zeros(1, np.uint64))], TABLES)


def test_an_index_of_no_tables_says_so() -> None:
    with (
        DIT([]) as dit,
        pytest.raises(ValueError, match="column 0 is of table 0, and there are no tables; give a list"),
    ):
        dit.index([IdColumn(0, np.zeros(1, np.uint64))])


def test_more_ids_than_query_ids_can_number_are_refused_before_any_copy() -> None:
    huge = np.broadcast_to(np.uint64(0), (NNZ_LIMIT,))  # 16 GB if copied
    one = np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="group 0 has 2147483648 ids up to column 2"):
        check_columns([IdColumn(0, huge), IdColumn(1, one), IdColumn(0, one)], TABLES)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, np.int64, ">u4", ">u8", ">i8"])
def test_strided_unaligned_swapped_and_read_only_ids_keep_their_values(dtype: Any) -> None:  # L121
    plain = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype)
    raw = bytearray(1 + plain.nbytes)
    raw[1:] = plain.tobytes()
    unaligned = np.frombuffer(bytes(raw), np.uint8)[1:].view(dtype)
    assert not unaligned.flags.aligned
    read_only = plain.copy()
    read_only.flags.writeable = False
    strided = np.repeat(plain, 2)[::2]
    mask = np.array([False, True] * 8)[::2]
    mask.flags.writeable = False
    for values in (plain, unaligned, read_only, strided, plain[::-1][::-1]):
        (checked,) = check_columns([IdColumn(1, values, mask)], TABLES)
        assert checked.values.flags.c_contiguous
        assert checked.values.flags.aligned
        assert checked.values.dtype.isnative
        assert checked.values.tolist() == [3, 1, 4, 1, 5, 9, 2, 6]
        with DIT(TABLES) as dit:
            assert dit.index([IdColumn(1, values, mask)]).groups[1].unique_ids.tolist() == [3, 1, 4, 5, 9, 2, 6]


def test_int64_ids_are_viewed_as_uint64_without_a_copy() -> None:
    ids = np.array([-1, np.iinfo(np.int64).min], np.int64)
    (checked,) = check_columns([IdColumn(0, ids)], TABLES)
    assert checked.values.tolist() == [(1 << 64) - 1, 1 << 63]
    assert np.shares_memory(checked.values, ids)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, ">i4", np.int64])
def test_a_negative_id_is_one_key_whatever_its_width(dtype: Any) -> None:
    with DIT(TABLES) as dit:
        first = dit.index([IdColumn(0, np.array([-1, 5, -128], np.int64))]).groups[0]
        again = dit.index([IdColumn(0, np.array([-128, -1, 5], dtype))]).groups[0]
    assert first.unique_ids.tolist() == [2**64 - 1, 5, 2**64 - 128]
    assert not again.is_new.any()
    assert again.locations.tolist() == first.locations[[2, 0, 1]].tolist()


def test_the_largest_uint32_is_not_minus_one() -> None:
    with DIT(TABLES) as dit:
        columns = [IdColumn(0, np.array([2**32 - 1], np.uint32)), IdColumn(0, np.array([-1], np.int32))]
        assert dit.index(columns).groups[0].unique_ids.tolist() == [2**32 - 1, 2**64 - 1]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, ">u2"])
def test_small_unsigned_ids_are_the_same_numbers(dtype: Any) -> None:
    (checked,) = check_columns([IdColumn(0, np.array([0, 255, 128], dtype))], TABLES)
    assert checked.values.dtype == np.uint32
    assert checked.values.tolist() == [0, 255, 128]


def test_read_only_ids_are_not_copied() -> None:
    ids = np.arange(4, dtype=np.uint32)
    ids.flags.writeable = False
    (checked,) = check_columns([IdColumn(0, ids)], TABLES)
    assert np.shares_memory(checked.values, ids)


@pytest.mark.parametrize("kind", [pa.uint32(), pa.uint64(), pa.int64()])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("chunked", [False, True])
def test_arrow_ids_are_read_where_they_are(kind: pa.DataType, start: int, chunked: bool) -> None:
    # L99: a ChunkedArray where an Array is expected
    array = pa.array([7, 1, 2, 3, 9], kind)
    where = np.frombuffer(array.buffers()[1], np.uint8)
    column = pa.chunked_array([array.slice(start)]) if chunked else array.slice(start)
    (checked,) = check_columns([IdColumn(0, column)], TABLES)
    assert checked.missing is None
    assert checked.values.tolist() == [7, 1, 2, 3, 9][start:]
    assert np.shares_memory(checked.values, where)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_arrow_ids_above_2_to_53_beside_a_null_stay_exact(kind: pa.DataType) -> None:  # L87
    array = pa.array([2**53 + 1, None, 2**62 + 1], kind)
    (checked,) = check_columns([IdColumn(0, array)], TABLES)
    assert checked.values[[0, 2]].tolist() == [2**53 + 1, 2**62 + 1]
    assert checked.missing is not None
    assert checked.missing.tolist() == [0, 1, 0]
    assert np.shares_memory(checked.values, np.frombuffer(array.buffers()[1], np.uint8))


def test_nulls_and_the_mask_are_both_missing() -> None:
    mask = np.array([True, False, False])
    (checked,) = check_columns([IdColumn(0, pa.array([1, None, 3], pa.uint32()), mask)], TABLES)
    assert checked.missing is not None
    assert checked.missing.tolist() == [1, 1, 0]
    assert mask.tolist() == [True, False, False]
    with pytest.raises(ValueError, match=r"has shape \(3,\), and there are 2 ids"):
        check_columns([IdColumn(0, pa.array([1, 2]), mask)], TABLES)


def test_a_dictionary_index_that_names_nothing_is_refused() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 3], pa.int8()), pa.array([1, 2, 3]), safe=False)
    with pytest.raises(ValueError, match=r"column 0 \(table 1\): index 3 at position 1 .* of 3 values"):
        check_columns([IdColumn(1, array)], TABLES)


WIDTHS = {
    pa.int8(): (-128, 127), pa.uint8(): (0, 255), pa.int16(): (-(2**15), 2**15 - 1), pa.int32(): (-(2**31), 2**31 - 1),
    pa.uint32(): (0, 2**32 - 1), pa.int64(): (-(2**63), 2**63 - 1), pa.uint64(): (0, 2**64 - 1),
}  # fmt: skip


@st.composite
def arrow_columns(draw: st.DrawFn) -> tuple[Any, list[int | None], list[bool] | None]:
    """(Arrow ids, the same as a list, a mask or None): plain, sliced, in chunks, by dictionaries with nulls in them."""
    kind = draw(st.sampled_from(list(WIDTHS)))
    value = st.one_of(st.none(), st.integers(*WIDTHS[kind]))
    chunks: list[Any] = []
    expected: list[int | None] = []
    encoded = draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        values = draw(st.lists(value, max_size=20))
        array = pa.array(values, kind)
        if encoded:
            indices = draw(st.lists(st.one_of(st.none(), st.integers(0, len(values) - 1)) if values else st.none()))
            array = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int16()), array)
            values = [None if i is None else values[i] for i in indices]
        start, length = draw(st.integers(0, 9)), draw(st.integers(0, 30))
        chunks.append(array.slice(start, length))
        expected += values[start : start + length]
    column = pa.chunked_array(chunks, pa.dictionary(pa.int16(), kind) if encoded else kind)
    if column.num_chunks == 1 and draw(st.booleans()):
        column = column.chunk(0)
    mask = draw(st.none() | st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
    return column, expected, mask


@given(arrow_columns())
def test_arrow_ids_keep_values_and_nulls(case: tuple[Any, list[int | None], list[bool] | None]) -> None:
    column, expected, mask = case
    given_mask = None if mask is None else np.array(mask, np.bool_)
    (checked,) = check_columns([IdColumn(0, column, given_mask)], TABLES)
    missing = [False] * len(expected) if checked.missing is None else checked.missing.astype(bool).tolist()
    hidden = mask if mask is not None else [False] * len(expected)
    assert missing == [v is None or h for v, h in zip(expected, hidden, strict=True)]
    words = zip(checked.values.tolist(), missing, strict=True)
    assert [w for w, m in words if not m] == [
        v % 2**64 for v, m in zip(expected, missing, strict=True) if v is not None and not m
    ]


def test_columns_that_can_be_gone_through_once_are_refused() -> None:
    ids = IdColumn(0, np.arange(5, dtype=np.uint64))
    for columns in (iter([ids]), (c for c in [ids]), ids, {0: ids}):
        with pytest.raises(TypeError, match=r"give a list of IdColumn"):
            check_columns(columns, [IndexTable(1, 0)])  # type: ignore[arg-type]
