"""Building and comparing batches of ids, for tests of the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from headrace.indexer.indexed import IdColumn, IndexedGroup, IndexedIds


def column(
    table: int, ids: Sequence[int], missing: Sequence[bool] | None = None, dtype: npt.DTypeLike = np.uint64
) -> IdColumn:
    """A column of Python integers; negative ones as their two's complement."""
    values = np.array([i & (1 << 64) - 1 for i in ids], np.uint64).astype(dtype)
    return IdColumn(table, values, None if missing is None else np.array(missing, np.bool_))


def assert_same_ids(actual: IndexedIds, expected: IndexedIds) -> None:
    """Equal field by field, dtypes included; AssertionError names group and field."""
    assert actual.ticket == expected.ticket, (actual.ticket, expected.ticket)
    assert len(actual.groups) == len(expected.groups)
    for group, (ours, theirs) in enumerate(zip(actual.groups, expected.groups, strict=True)):
        for field in fields(IndexedGroup):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype, (group, field.name, a.dtype, b.dtype)
                np.testing.assert_array_equal(a, b, err_msg=f"group {group}, {field.name}")
            else:
                assert a == b, (group, field.name, a, b)
