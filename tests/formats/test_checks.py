"""One rule for integers from outside."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.formats.checks import check_integer


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whatever_has_an_index_becomes_an_int(value: object) -> None:
    assert type(check_integer("x", value, 0, 3)) is int
    assert check_integer("x", value, 3, 9) == 3


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, np.float64(1), np.bool_(True), int])
def test_other_types_are_type_errors(value: object) -> None:
    with pytest.raises(TypeError, match=r"x=.* is not an integer"):
        check_integer("x", value, 0, 10)


@pytest.mark.parametrize("value", [-1, 11, 2**70])
def test_other_values_are_value_errors(value: int) -> None:
    with pytest.raises(ValueError, match=f"x={value} is not from 0 to 10"):
        check_integer("x", value, 0, 10)
