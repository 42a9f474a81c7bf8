from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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


def test_more_tables_than_the_entry_can_number_are_refused() -> None:
    tables = [IndexTable(i, 0) for i in range((1 << 16) + 1)]
    with pytest.raises(ValueError, match="65537 tables"):
        check_tables(tables)
    assert len(check_tables(tables[:-1])) == 1 << 16


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (np.zeros(2, np.float32), TypeError),  # P31: no ids through floats
        (np.array([-0.0, np.nan]), TypeError),  # L121
        (np.zeros(2, np.int32), TypeError),  # -1 could be 2^32-1 or 2^64-1
        (np.zeros(2, np.uint16), TypeError),
        (np.zeros(2, np.bool_), TypeError),
        (np.array([1, None], object), TypeError),  # P33
        ([1, 2], TypeError),
        (np.zeros((2, 2), np.uint64), ValueError),
        (np.array(3, np.uint64), ValueError),
    ],
)
def test_ids_of_another_kind_are_refused(values: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="column 1"):
        check_columns([IdColumn(0, np.zeros(0, np.uint32)), IdColumn(1, values)], TABLES)


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        (np.zeros(2, np.uint8), TypeError),
        (np.zeros(3, np.bool_), ValueError),
        ([True, False], TypeError),
    ],
)
def test_mask_of_another_kind_is_refused(missing: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="column 0"):
        check_columns([IdColumn(0, np.zeros(2, np.uint64), missing)], TABLES)


@pytest.mark.parametrize("table", [-1, 2])
def test_unknown_table_is_refused(table: int) -> None:
    with pytest.raises(ValueError, match="table of column 0"):
        check_columns([IdColumn(table, np.zeros(1, np.uint64))], TABLES)


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
    (checked,) = check_columns([IdColumn(0, ids)], TABLES)  # type: ignore[arg-type]
    assert checked.values.tolist() == [(1 << 64) - 1, 1 << 63]
    assert np.shares_memory(checked.values, ids)
