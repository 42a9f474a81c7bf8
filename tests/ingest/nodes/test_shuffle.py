import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.ingest.engine.conformance import check_node, check_node_over, equal_blocks
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.nodes.batch_rows import BatchRows
from headrace.ingest.nodes.shuffle import Shuffle, window_permutation


def flat(lists: list[list[int]]) -> list[int]:
    return [x for values in lists for x in values]


def test_the_order_is_this_one(make_blocks, values) -> None:  # L37, L40: pinned, so that no release changes it
    node = Shuffle(make_blocks([5, 5, 2]), window_rows=6, seed=3, block_rows=4)
    assert values(list(node)) == [[2, 5, 4, 1], [3, 0], [9, 7, 10, 6], [8, 11]]
    node.set_epoch(1)
    node.reset()
    assert values(list(node)) == [[1, 2, 0, 4], [5, 3], [10, 9, 6, 8], [11, 7]]
    node.reset()
    assert values(list(node)) == [[1, 2, 0, 4], [5, 3], [10, 9, 6, 8], [11, 7]]


def test_the_permutation_is_that_of_seed_epoch_and_window() -> None:
    bits = np.random.PCG64(np.random.SeedSequence([3, 1, 2]))
    expected = np.random.Generator(bits).permutation(10)
    np.testing.assert_array_equal(window_permutation(10, seed=3, epoch=1, window=2), expected)
    assert window_permutation(10, seed=3, epoch=1, window=2).dtype == np.int64


def test_two_processes_agree() -> None:  # L37: whatever PYTHONHASHSEED
    script = (
        "from headrace.ingest.nodes.shuffle import *; print(window_permutation(9, seed=1, epoch=2, window=3).tolist())"
    )
    source_root = str(Path(__file__).resolve().parents[3] / "src")
    other = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": source_root, "PYTHONHASHSEED": "1234"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert other.stdout == f"{window_permutation(9, seed=1, epoch=2, window=3).tolist()}\n"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 9), max_size=6),
    window_rows=st.integers(1, 12),
    block_rows=st.integers(1, 8),
    taken=st.integers(0, 20),
)
def test_each_window_is_a_permutation_of_its_rows_and_resumes_exactly(
    make_blocks, values, sizes: list[int], window_rows: int, block_rows: int, taken: int
) -> None:  # L23
    def make() -> Shuffle:
        return Shuffle(make_blocks(sizes), window_rows=window_rows, seed=0, block_rows=block_rows)

    whole = flat(values(list(make())))
    rows = list(range(sum(sizes)))
    for begin in range(0, len(rows), window_rows):
        assert sorted(whole[begin : begin + window_rows]) == rows[begin : begin + window_rows]
    node = make()
    head = list(islice(node, taken))
    again = make()
    again.reset(node.get_state())
    assert flat(values([*head, *again])) == whole


def test_each_row_keeps_its_place(make_blocks) -> None:
    for block in Shuffle(make_blocks([5, 5]), window_rows=10, seed=1, block_rows=4):
        assert block.source.ranges is None
        assert [block.source.locate(i)[1] for i in range(block.num_rows)] == block.data.column(0).to_pylist()


def test_a_state_brings_its_epoch(make_blocks, values) -> None:  # P52
    node = Shuffle(make_blocks([8]), window_rows=8, seed=0, epoch=5, block_rows=2)
    whole = values(list(node))
    node.reset()
    next(node)
    again = Shuffle(make_blocks([8]), window_rows=8, seed=0, block_rows=2)
    again.reset(node.get_state())
    assert again.epoch == 5
    assert values(list(again)) == whole[1:]


def test_set_epoch_does_not_disturb_the_epoch_under_way(make_blocks, values) -> None:
    whole = values(list(Shuffle(make_blocks([8]), window_rows=4, seed=0, block_rows=2)))
    node = Shuffle(make_blocks([8]), window_rows=4, seed=0, block_rows=2)
    first = [next(node)]
    node.set_epoch(1)
    assert values([*first, *node]) == whole
    assert node.epoch == 0


@pytest.mark.parametrize("option", [{"seed": 1}, {"window_rows": 5}])
def test_a_state_of_other_options_is_refused(make_blocks, option: dict[str, int]) -> None:
    state = Shuffle(make_blocks([8]), window_rows=4, seed=0).get_state()
    other = Shuffle(make_blocks([8]), **{"window_rows": 4, "seed": 0, **option})
    with pytest.raises(ValueError, match="Shuffle: the state is of"):
        other.reset(state)


@pytest.mark.parametrize(
    "option", [{"window_rows": 0}, {"window_rows": True}, {"seed": -1}, {"epoch": 1.0}, {"block_rows": 0}]
)
def test_wrong_options_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"Shuffle: {next(iter(option))}"):
        Shuffle([], **{"window_rows": 4, "seed": 0, **option})  # type: ignore[arg-type]


def test_conforms(make_blocks) -> None:
    blocks = make_blocks([5, 0, 3, 4])

    def over(source):
        return Shuffle(source, window_rows=7, seed=2, block_rows=3)

    check_node(lambda: over(blocks), equal=equal_blocks)
    check_node_over(over, items=blocks, equal=equal_blocks)


def test_chains_conform(make_blocks) -> None:
    blocks = make_blocks([5, 0, 3, 4, 2])

    def over(source):
        return BatchRows(Prefetch(Shuffle(Prefetch(source), window_rows=6, seed=2, block_rows=4)), 3)

    check_node(lambda: over(blocks), equal=equal_blocks)
    check_node_over(over, items=blocks, equal=equal_blocks)
