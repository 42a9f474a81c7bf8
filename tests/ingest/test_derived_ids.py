"""Crosses and buckets against their definition in plain Python; their ids are pinned."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ingest.derived_ids import bucket_ids, cross_ids

MASK = 2**64 - 1
WORDS = st.integers(0, MASK) | st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, MASK])


def mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def cross_twin(*parts: int | None) -> int:
    state = mix(len(parts))
    for part in parts:
        mixed = mix(0) + 0xD1B54A32D192ED03 if part is None else mix(part)
        state = mix((state * 0x9E3779B97F4A7C15 + mixed) & MASK)
    return state


def log_square_twin(value: float) -> int:
    """FuxiCTR's and libffm's rule."""
    return math.floor(math.log(value) ** 2) if value > 2 else int(value)


@settings(deadline=None)
@given(st.integers(2, 4).flatmap(lambda n: st.lists(st.tuples(*[st.none() | WORDS] * n), min_size=1, max_size=20)))
def test_crosses_are_those_of_the_definition(rows: list[tuple[int | None, ...]]) -> None:
    columns = list(zip(*rows, strict=True))
    parts = []
    for number, column in enumerate(columns):
        missing = np.array([v is None for v in column])
        junk = 7 + number  # what stands under a missing value does not count
        ids = np.array([junk if v is None else v for v in column], np.uint64)
        parts.append((ids, missing if missing.any() or number % 2 else None))
    assert cross_ids(parts).tolist() == [cross_twin(*row) for row in rows]


def test_crosses_are_pinned() -> None:
    # A changed hash would give every stored row another id. By cross_twin.
    ids = cross_ids(
        [(np.array([1, 2, 0], np.uint32), None), (np.array([2, 1, 0], np.int64), np.array([0, 0, 1], bool))]
    )
    assert ids.tolist() == [0x1EE1F557B3DF6F2C, 0xD9267AF736DED877, 0x4C6643AE456D897E]


def test_signed_parts_count_by_their_bits() -> None:
    one = np.array([5], np.uint64)
    signed = cross_ids([(one, None), (np.array([-1], np.int64), None)])
    assert signed.tolist() == cross_ids([(one, None), (np.array([MASK], np.uint64), None)]).tolist()


def test_a_million_pairs_do_not_collide() -> None:
    left, right = np.divmod(np.arange(1_000_000, dtype=np.uint64), np.uint64(1000))
    assert len(np.unique(cross_ids([(left, None), (right, None)]))) == 1_000_000


@settings(deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.lists(st.floats(-1e18, 1e18, allow_nan=False), min_size=1, max_size=9, unique=True).map(sorted),
)
def test_buckets_by_boundaries(values: list[int], boundaries: list[float]) -> None:
    found = bucket_ids(np.array(values, np.int64), boundaries, "boundaries")
    assert found.tolist() == [sum(edge <= float(v) for edge in boundaries) for v in values]


def test_a_value_on_a_boundary_is_above_it() -> None:
    assert bucket_ids(np.array([9, 10, 11, 100]), (10, 100), "boundaries").tolist() == [0, 1, 1, 2]


@settings(deadline=None)
@given(st.lists(st.integers(-1000, 2**53), min_size=1))
def test_log_square_of_integers(values: list[int]) -> None:
    found = bucket_ids(np.array(values, np.int64), (), "log_square")
    assert found.view(np.int64).tolist() == [log_square_twin(v) for v in values]


@settings(deadline=None)
@given(st.lists(st.floats(-(2.0**20), 2.0**127, width=32), min_size=1))
def test_log_square_of_floats(values: list[float]) -> None:
    found = bucket_ids(np.array(values, np.float32), (), "log_square")
    assert found.view(np.int64).tolist() == [log_square_twin(v) for v in values]


@pytest.mark.parametrize(("value", "bucket"), [(2, 2), (3, 1), (8, 4), (260, 30), (17668, 95), (-1, -1), (0, 0)])
def test_log_square_literals(value: int, bucket: int) -> None:
    assert bucket_ids(np.array([value]), (), "log_square").view(np.int64).tolist() == [bucket]
