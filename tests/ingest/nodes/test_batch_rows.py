from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchdata.nodes import IterableWrapper

from headrace.formats.rows import RowBlock
from headrace.ingest.engine.conformance import check_node, check_node_over, equal_blocks
from headrace.ingest.engine.conformance_sources import FaultySource
from headrace.ingest.engine.parallel_map import ParallelMap
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.nodes.batch_rows import BatchRows


def same(block: RowBlock) -> RowBlock:
    return block


def test_batches_have_one_size_and_the_last_is_short(make_blocks, values) -> None:
    node = BatchRows(make_blocks([3, 1, 0, 4]), 3)
    assert values(list(node)) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_drop_last_counts_what_it_drops(make_blocks, values) -> None:  # L7
    node = BatchRows(make_blocks([3, 1, 0, 4]), 3, drop_last=True)
    assert values(list(node)) == [[0, 1, 2], [3, 4, 5]]
    assert node.stats().skipped == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            node.next()
    assert node.stats().skipped == 2


@pytest.mark.parametrize(
    ("rows", "sizes"), [(0, []), (2, [2]), (3, [3]), (4, [3, 1]), (6, [3, 3])], ids=lambda v: str(v)
)
def test_row_counts_around_a_multiple_of_the_batch_size(make_blocks, rows: int, sizes: list[int]) -> None:  # P16
    assert [b.num_rows for b in BatchRows(make_blocks([rows]), 3)] == sizes
    full = [s for s in sizes if s == 3]
    assert [b.num_rows for b in BatchRows(make_blocks([rows]), 3, drop_last=True)] == full


@pytest.mark.parametrize("batch_size", [0, -1, True, False, 1.0, "3", None])
def test_wrong_batch_size_is_refused(batch_size: object) -> None:  # L63
    with pytest.raises(ValueError, match="BatchRows: batch_size is an integer of at least 1"):
        BatchRows([], batch_size)  # type: ignore[arg-type]


def test_what_is_no_row_block_is_refused() -> None:
    with pytest.raises(TypeError, match="BatchRows: expected a RowBlock, got int"):
        next(BatchRows([1], 3))


def test_each_row_keeps_its_place(make_blocks) -> None:
    second = list(BatchRows(make_blocks([3, 1, 4]), 5))[1]
    assert [second.source.locate(i) for i in range(3)] == [("a.tsv", 5), ("a.tsv", 6), ("a.tsv", 7)]


def test_a_source_error_loses_no_row(make_blocks, values) -> None:  # torchdata's Batcher drops the partial batch
    source = FaultySource(make_blocks([2, 2, 2]), 1, OSError(5, "read error"))
    node = BatchRows(source, 3)
    with pytest.raises(OSError, match="read error"):
        next(node)
    source.healed = True
    node.reset(node.get_state())
    assert values(list(node)) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("wrap", [list, IterableWrapper], ids=["list", "torchdata"])
def test_conforms(make_blocks, wrap, drop_last: bool) -> None:
    blocks = make_blocks([3, 1, 0, 4])
    check_node(lambda: BatchRows(wrap(blocks), 3, drop_last=drop_last), equal=equal_blocks)
    check_node_over(lambda s: BatchRows(s, 3, drop_last=drop_last), items=blocks, equal=equal_blocks)


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_chains_conform(make_blocks, num_workers: int) -> None:
    blocks = make_blocks([3, 1, 0, 4, 5])

    def over(source):
        return Prefetch(BatchRows(ParallelMap(Prefetch(source), same, num_workers=num_workers), 4))

    check_node(lambda: over(blocks), equal=equal_blocks)
    check_node_over(over, items=blocks, equal=equal_blocks)


def test_a_resume_does_not_depend_on_block_sizes(make_blocks, values) -> None:
    first = BatchRows(make_blocks([7, 1]), 3)
    next(first)
    state = first.get_state()
    again = BatchRows(make_blocks([1, 0, 1, 3, 3]), 3)
    again.reset(state)
    assert values(list(again)) == [[3, 4, 5], [6, 7]]


def test_a_resume_beyond_the_end_of_the_source_is_an_error(make_blocks) -> None:
    first = BatchRows(make_blocks([7]), 5)
    next(first)
    again = BatchRows(make_blocks([2, 2]), 5)
    again.reset(first.get_state())
    with pytest.raises(ValueError, match="the source ended 1 rows before the place of the state"):
        next(again)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 7), max_size=8), batch_size=st.integers(1, 9), taken=st.integers(0, 8))
def test_batches_are_slices_of_all_rows_and_so_after_a_resume(
    make_blocks, values, sizes: list[int], batch_size: int, taken: int
) -> None:
    rows = list(range(sum(sizes)))
    expected = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    node = BatchRows(make_blocks(sizes), batch_size)
    head = list(islice(node, taken))
    again = BatchRows(make_blocks(sizes), batch_size)
    again.reset(node.get_state())
    assert values([*head, *again]) == expected
