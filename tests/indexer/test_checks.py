from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.indexer.checks import check_integer


class Indexable:
    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize("value", [7, np.int8(7), np.uint64(7), np.array(7), Indexable()])
def test_whatever_is_an_integer_is_accepted(value: Any) -> None:
    checked = check_integer("n", value, 7, 7)
    assert checked == 7
    assert type(checked) is int


@pytest.mark.parametrize("value", [True, np.True_, 7.0, np.float64(7), "7", None, np.array([7, 7]), 7j])
def test_another_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="n must be an integer, not"):
        check_integer("n", value, 0, 10)


@pytest.mark.parametrize("value", [-1, 11, 1 << 70, np.int64(-1)])
def test_another_range_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match=r"n is -?\d+; it must lie in \[0, 10\]"):
        check_integer("n", value, 0, 10)
