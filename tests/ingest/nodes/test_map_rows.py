import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from torchdata.nodes import IterableWrapper

from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.ingest.engine.conformance import check_node, check_node_over, equal_blocks
from headrace.ingest.nodes.batch_rows import BatchRows
from headrace.ingest.nodes.map_rows import Map

WORKERS = [0, 1, 4]


def negate(block: RowBlock) -> RowBlock:
    column = pc.negate(block.data.column(0))
    return RowBlock(pa.record_batch({"x": column}), block.source)


def keep_even(block: RowBlock) -> RowBlock:
    return block.take(np.flatnonzero(block.data.column(0).to_numpy() % 2 == 0))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_columns_may_change(make_blocks, values, num_workers: int) -> None:
    with Map(make_blocks([3, 2]), negate, num_workers=num_workers) as node:
        assert values(list(node)) == [[0, -1, -2], [-3, -4]]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_filter_keeps_places_and_counts_what_it_leaves_out(make_blocks, values, num_workers: int) -> None:
    with Map(make_blocks([3, 1, 1, 2]), keep_even, num_workers=num_workers) as node:
        blocks = list(node)
        assert values(blocks) == [[0, 2], [4], [6]]
        assert blocks[0].source.locate(1) == ("a.tsv", 2)
        assert node.stats().skipped == 3


def test_a_block_may_be_sliced_and_reordered(make_blocks, values) -> None:
    assert values(list(Map(make_blocks([4]), lambda b: b.slice(1, 2)))) == [[1, 2]]
    assert values(list(Map(make_blocks([3]), lambda b: b.take([2, 0, 1])))) == [[2, 0, 1]]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda b: b.data, TypeError, "expected a RowBlock, got RecordBatch"),
        (lambda b: b.take([0, 1, 2, 0]), ValueError, "3 rows became 4"),
        (lambda b: b.take([0, 0]), ValueError, "one of them twice"),
        (
            lambda b: RowBlock(b.data.slice(0, 1), Source(("a.tsv",), (SourceRange(0, 77, 1),))),
            ValueError,
            "rows that did not come in",
        ),
        (
            lambda b: RowBlock(b.data, Source(("b.tsv",), (SourceRange(0, 0, 3),))),
            ValueError,
            "lists other files",
        ),
        (lambda b: 1 / 0, ZeroDivisionError, "division by zero"),
        (lambda b: next(iter(())), RuntimeError, "raised StopIteration"),
    ],
)
def test_what_is_not_allowed_is_refused_naming_the_rows(
    make_blocks, num_workers: int, fn, error: type[Exception], message: str
) -> None:
    with Map(make_blocks([3]), fn, num_workers=num_workers) as node:
        for _ in range(2):
            with pytest.raises(error, match=message) as caught:
                next(node)
            assert caught.value.headrace_context == ["in node Map, rows 0..2 of a.tsv"]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("fn", [negate, keep_even])
@pytest.mark.parametrize("wrap", [list, IterableWrapper], ids=["list", "torchdata"])
def test_conforms(make_blocks, wrap, fn, num_workers: int) -> None:
    blocks = make_blocks([3, 1, 1, 0, 4])
    check_node(lambda: Map(wrap(blocks), fn, num_workers=num_workers), equal=equal_blocks)
    check_node_over(lambda s: Map(s, negate, num_workers=num_workers), items=blocks[:3], equal=equal_blocks)


def test_a_filter_before_batches_conforms(make_blocks) -> None:
    blocks = make_blocks([3, 1, 1, 0, 4, 6])

    def over(source):
        return BatchRows(Map(source, keep_even, num_workers=2), 3)

    check_node(lambda: over(blocks), equal=equal_blocks)
    check_node_over(over, items=blocks, equal=equal_blocks)
