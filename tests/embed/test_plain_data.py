"""Plain data: round trips, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.embed.plain_data import decode, encode

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.just("$tuple"), inner, max_size=3)
    ),
    max_leaves=12,
)


def round_trip(value):
    arrays = []
    tree = json.loads(json.dumps(encode(value, arrays, "value")))
    return decode(tree, arrays)


@given(VALUES)
def test_round_trip(value):
    back = round_trip(value)
    assert back == value
    assert repr(back) == repr(value)  # also 1 against 1.0 and True, and tuples against lists


def test_arrays_and_tensors_keep_kind_type_and_shape():
    value = {
        "a": torch.arange(6, dtype=torch.int16).reshape(2, 3).t(),
        "b": (np.array(3.5, np.float32), torch.tensor(7.0), np.empty((0, 2), np.uint64)),
        "c": np.int64(4),
    }
    back = round_trip(value)
    assert torch.equal(back["a"], value["a"])
    assert back["a"].dtype == torch.int16
    assert isinstance(back["b"][0], np.ndarray)
    assert [x.shape for x in back["b"]] == [(), (), (0, 2)]
    assert back["c"] == 4


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e-320, 2**70])
def test_numbers_at_the_edges(value):
    assert repr(round_trip(value)) == repr(value)


def test_the_stored_array_is_a_copy():
    arrays = []
    tensor = torch.zeros(2)
    encode(tensor, arrays, "value")
    tensor += 1
    assert arrays[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"value\['a'\]\[1\] is a object"),
        ({1.5: 2}, "value has the key 1.5"),
        ({True: 2}, "value has the key True"),
        ([{1, 2}], r"value\[0\] is a set"),
        (np.array([object()]), "array of Python objects"),
        (torch.zeros(1, dtype=torch.bfloat16), "value is a tensor of torch.bfloat16"),
    ],
)
def test_other_data_is_refused_by_its_place(value, message):
    with pytest.raises(TypeError, match=message):
        encode(value, [], "value")


@pytest.mark.parametrize(
    "tree", [{"$tensor": 1}, {"$array": -1}, {"$array": True}, {"$what": 1}, {"$tuple": [], "a": 1}]
)
def test_trees_that_were_never_written_are_refused(tree):
    with pytest.raises(ValueError):
        decode(tree, [np.zeros(1)])
