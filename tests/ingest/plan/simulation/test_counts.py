"""Counts of a step: the array kernel and its twin, over the same cases."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ingest.plan.simulation._counts_py import count_step_py
from headrace.ingest.plan.simulation.counts import StepCounts, count_step, pack_rows, touched
from headrace.ingest.plan.simulation.links import Topology


def by_arrays(now, before, after, owner, bins, topology, num_bins) -> StepCounts:
    arrays = [None if step is None else [np.array(sorted(r), np.uint32) for r in step] for step in (now, before, after)]
    here, late, urgent = (None if a is None else touched(a, len(owner)) for a in arrays)
    packed = pack_rows(np.array(owner, np.uint16), np.array(bins, np.uint8))
    return count_step(arrays[0], packed, topology, num_bins, here=here, before=late, after=urgent)


@pytest.fixture(params=[by_arrays, count_step_py])
def count(request):
    return request.param


def test_a_step_by_hand(count) -> None:
    """Four ranks on two nodes, rows 0..5 owned by ranks 0, 1, 2, 3, 3, 0; row 5 is in bin 0, the others in bin 1."""
    now = [{0, 2, 3}, {2, 5}, {3}, {0, 2}]
    found = count(now, [{2}, set(), set(), set()], [set(), {3}, {4}, set()], [0, 1, 2, 3, 3, 0],
                  [1, 1, 1, 1, 1, 0], Topology(4, 2), 2)  # fmt: skip
    assert found.unique.tolist() == [[0, 3], [1, 1], [0, 1], [0, 2]]
    # kinds: row 0 neither, row 2 late (1), row 3 urgent (2), row 5 neither
    asked = found.asked
    assert asked[0, 1, :, 1].tolist() == [0, 1, 1, 0]  # rank 0 asks the other node for rows 2 and 3; row 0 is its own
    assert asked[1, 0, :, 0].tolist() == [1, 0, 0, 0]  # rank 1 asks rank 0 for row 5
    assert asked[1, 1, :, 1].tolist() == [0, 1, 0, 0]
    assert asked[2, 0, :, 1].tolist() == [0, 0, 1, 0]
    assert (asked[3, 0, :, 1].tolist(), asked[3, 1, :, 1].tolist()) == ([0, 1, 0, 0], [1, 0, 0, 0])
    assert asked.sum() == 7
    assert found.served[2, 1, 1, 1] == 2  # row 2, to both ranks of node 0
    assert found.node_served[2, :, 1].tolist() == [0, 1, 0, 0]  # once to the node
    # row 2 (owner 2, number 0 of its node) lands at rank 0, row 3 at rank 1, row 0 at rank 2
    assert found.landed[:, :, 1].tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert found.passed_in[:, :, 1].tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert found.passed_out[:, :, 1].tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert found.owned.tolist() == [[1, 1], [0, 0], [0, 1], [0, 1]]
    assert found.owned_pair.tolist() == [[1, 1], [0, 0], [0, 1], [0, 2]]


def test_without_a_window_all_is_late_and_urgent(count) -> None:
    found = count([{0}, {0}], None, [set(), set()], [1], [0], Topology(2, 1), 1)
    assert found.asked[0, 1, :, 0].tolist() == [0, 0, 0, 1]
    assert found.asked.sum() == 1


def test_ranks_without_rows(count) -> None:
    empty = [set(), set(), set(), set()]
    found = count(empty, empty, empty, [0, 1], [0, 0], Topology(4, 2), 1)
    assert all(getattr(found, f.name).sum() == 0 for f in fields(StepCounts))


rows_of_ranks = st.sets(st.integers(0, 11))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (6, 2), (6, 3), (3, 3)]),
    st.data(),
    st.lists(st.integers(0, 65_535), min_size=12, max_size=12),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    st.booleans(),
)
def test_arrays_count_as_the_twin(shape, data, places, bins, window) -> None:
    topology = Topology(*shape)
    steps = [[data.draw(rows_of_ranks) for _ in range(topology.ranks)] for _ in range(3)]
    now, before, after = steps
    arguments = (
        now, before if window else None, after, [p * topology.ranks >> 16 for p in places], bins, topology, 3,
    )  # fmt: skip
    ours, twin = by_arrays(*arguments), count_step_py(*arguments)
    for field in fields(StepCounts):
        np.testing.assert_array_equal(getattr(ours, field.name), getattr(twin, field.name), err_msg=field.name)
    assert ours.asked.sum() == ours.served.sum()
    assert ours.landed.sum() == ours.node_served.sum()
    assert ours.passed_in.sum() == ours.passed_out.sum()
