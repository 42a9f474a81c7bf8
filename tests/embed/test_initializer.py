"""Initial vectors: pinned values, the NumPy twin, independence, moments."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.embed import _initializer_py as twin
from headrace.embed import _rows
from headrace.embed.initializer import Constant, Normal, Uniform, from_dict, initial_vectors

MAX64 = 2**64 - 1


def keys(ids, table=7, missing=False):
    return np.array(ids, np.uint64), np.full(len(ids), table, np.uint32), np.full(len(ids), missing, bool)


def native_philox(counter, key):
    words = np.array(counter, np.uint32)
    _rows.philox4x32(words, *key)
    return words.tolist()


def twin_philox(counter, key):
    return twin.philox4x32(np.array(counter, np.uint64)[:, None], key)[:, 0].tolist()


@pytest.mark.parametrize("philox", [native_philox, twin_philox])
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # known answers of Random123, philox4x32-10
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF,) * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers(philox, counter, key, words):
    assert philox(counter, key) == words


@pytest.mark.parametrize("make", [initial_vectors, twin.initial_vectors])
def test_values_are_pinned(make):  # a checkpoint relies on them: unseen rows are not stored
    one = keys([1])
    assert make(Constant(value=0.5), 3, *one, 3).tolist() == [[0.5, 0.5, 0.5]]
    assert [v.hex() for v in make(Uniform(), 3, *one, 5)[0].tolist()] == UNIFORM_BITS
    assert [v.hex() for v in make(Normal(std=1.0), 3, *one, 5)[0].tolist()] == NORMAL_BITS


UNIFORM_BITS = [
    "0x1.9587e40000000p-6",
    "-0x1.def5260000000p-6",
    "-0x1.2b7b500000000p-5",
    "-0x1.90ef000000000p-9",
    "0x1.8286000000000p-8",
]
NORMAL_BITS = [
    "0x1.53151c0000000p-1",
    "0x1.83c3d00000000p-2",
    "-0x1.1eb3ce0000000p+0",
    "0x1.a93ec40000000p+0",
    "0x1.8c77ca0000000p-2",
]


@given(
    ids=st.lists(st.sampled_from([0, 1, 2**63, MAX64]) | st.integers(0, MAX64), max_size=20),
    seed=st.integers(0, MAX64),
    table=st.integers(0, 2**32 - 1),
    dim=st.integers(1, 19),
    missing=st.booleans(),
    initializer=st.sampled_from([Constant(value=-0.0), Uniform(), Uniform(low=-1, high=3), Normal(), Normal(std=1e20)]),
)
def test_native_equals_twin_bit_for_bit(ids, seed, table, dim, missing, initializer):
    arguments = (initializer, seed, *keys(ids, table, missing), dim)
    native, expected = initial_vectors(*arguments), twin.initial_vectors(*arguments)
    assert native.shape == (len(ids), dim)
    assert native.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("word", [0, 1, 2**30 - 1, 2**30, 2**31, 2**32 - 1])
def test_logarithm_and_turn_are_those_of_libm(word):
    log = twin.log_unit(np.array([word + 1], np.uint64))[0]
    assert log == pytest.approx(math.log((word + 1) / 2**32), rel=4e-16, abs=1e-18)
    cosine, sine = twin.cos_sin_turn(np.array([word], np.uint64))
    angle = ((word >> 30) + (word & (2**30 - 1)) / 2**30 - 0.5) * math.pi / 2
    assert cosine[0] == pytest.approx(math.cos(angle), abs=5e-16)
    assert sine[0] == pytest.approx(math.sin(angle), abs=5e-16)


@pytest.mark.parametrize("initializer", [Uniform(), Normal()])
def test_each_part_of_the_key_matters_and_nothing_else(initializer):
    def vector(seed=1, table=2, missing=False, raw=3, dim=6, at=0):
        return initial_vectors(initializer, seed, *keys([9] * at + [raw], table, missing), dim)[at].tolist()

    base = vector()
    assert vector(at=5) == base  # its place among others
    assert vector(dim=9)[:6] == base
    for other in ({"seed": 2}, {"seed": 1 + 2**32}, {"table": 3}, {"raw": 4}, {"raw": 3 + 2**32}, {"missing": True}):
        assert not set(vector(**other)) & set(base)
    assert vector(missing=True, raw=3) == vector(missing=True, raw=0)  # the id under a missing value is ignored
    assert vector(missing=True, raw=0) != vector(missing=False, raw=0)


def test_moments_and_range():
    many = keys(range(20_000))
    uniform = initial_vectors(Uniform(low=-0.2, high=0.4), 5, *many, 8)
    assert -0.2 <= uniform.min() < -0.1999
    assert 0.3999 < uniform.max() <= 0.4
    assert uniform.mean() == pytest.approx(0.1, abs=0.002)
    normal = initial_vectors(Normal(std=2.0), 5, *many, 8) / 2
    assert normal.mean() == pytest.approx(0, abs=0.01)
    assert normal.std() == pytest.approx(1, abs=0.01)
    assert (normal**4).mean() == pytest.approx(3, abs=0.1)
    assert np.abs(np.corrcoef(normal.T) - np.eye(8)).max() < 0.04


@pytest.mark.parametrize("initializer", [Constant(value=2), Uniform(low=-1, high=0), Normal(std=3)])
def test_plain_data_round_trip(initializer):
    assert from_dict(initializer.to_dict()) == initializer


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(low=1, high=0),
        lambda: Uniform(low=-3e38, high=3e38),
        lambda: Normal(std=-1),
        lambda: Normal(std=math.nan),
        lambda: Constant(value=1e39),
        lambda: from_dict({"name": "Beta"}),
        lambda: from_dict({"name": "Normal", "sd": 1}),
        lambda: initial_vectors(Uniform(), -1, *keys([1]), 2),
        lambda: initial_vectors(Uniform(), 2**64, *keys([1]), 2),
    ],
)
def test_bad_options_are_refused(make):
    with pytest.raises(ValueError, match=r"Uniform|Normal|Constant|initialiser|seed"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(low="0"),
        lambda: Normal(std=True),
        lambda: Constant(value=None),
        lambda: initial_vectors(Uniform(), 1.5, *keys([1]), 2),
        lambda: initial_vectors(Uniform(), True, *keys([1]), 2),
    ],
)
def test_options_of_other_types_are_refused_by_name(make):
    with pytest.raises(TypeError, match=r"(low|std|value|seed)="):
        make()


def test_numbers_of_numpy_are_plain_data():
    data = Uniform(low=np.float32(-0.5), high=np.int64(1)).to_dict()
    assert data == {"name": "Uniform", "low": -0.5, "high": 1.0}
    assert json.loads(json.dumps(data)) == data


def test_read_only_keys_are_taken():
    arrays = keys([1, 2])
    for array in arrays:
        array.flags.writeable = False
    assert initial_vectors(Uniform(), 0, *arrays, 4).shape == (2, 4)
