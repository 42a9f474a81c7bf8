"""Numbers that users pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.embed.arguments import check_integer, check_number


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3), np.array(3)])
def test_integers_of_any_type(value):
    number = check_integer("n", value, least=3, most=3)
    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize(
    "value", [True, np.True_, 3.0, "3", None, np.array([3, 4]), torch.tensor([3, 4]), np.float32(3)]
)
def test_what_is_no_integer(value):
    with pytest.raises(TypeError, match=r"n=.*, not an integer"):
        check_integer("n", value, least=0)


def test_bounds_of_integers():
    with pytest.raises(ValueError, match="n=2 is not at least 3"):
        check_integer("n", 2, least=3)
    with pytest.raises(ValueError, match="n=4 is above 3"):
        check_integer("n", np.int8(4), least=3, most=3)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int16(1)])
def test_numbers_of_any_type(value):
    number = check_number("x", value)
    assert (number, type(number)) == (1.0, float)


@pytest.mark.parametrize("value", [True, np.False_, "1", None, 1j, [1.0]])
def test_what_is_no_number(value):
    with pytest.raises(TypeError, match=r"x=.*, not a number"):
        check_number("x", value)


def test_numbers_beyond_all_floats():
    with pytest.raises(ValueError, match="x is beyond the largest float"):
        check_number("x", 10**400)
