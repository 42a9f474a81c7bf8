from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from headrace.indexer.checks import check_integer, check_locations, check_number


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


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), Fraction(2)])
def test_whatever_is_a_number_is_accepted(value: Any) -> None:
    checked = check_number("n", value, 1, 2)
    assert checked == 2.0
    assert type(checked) is float


@pytest.mark.parametrize("value", [True, np.True_, "2", None, 2j, np.array(2.0), Indexable()])
def test_what_is_no_number_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=f"n must be a number, not {type(value).__name__}"):
        check_number("n", value, 1, 2)


@pytest.mark.parametrize("value", [0.999, 2.001, float("nan"), float("inf")])
def test_a_number_out_of_range_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match=r"n is [0-9a-z.]+; it must be a number from 1 to 2"):
        check_number("n", value, 1, 2)


def test_locations_are_copied_only_if_they_must_be() -> None:
    array = np.array([3, 1, 4, 1], np.uint64)
    assert check_locations("n", array) is array
    for other in (array.astype(">u8")[::2], array[::2]):
        checked = check_locations("n", other)
        assert checked.tolist() == [3, 4]
        assert (checked.dtype, checked.dtype.isnative, checked.flags.c_contiguous) == (np.uint64, True, True)
