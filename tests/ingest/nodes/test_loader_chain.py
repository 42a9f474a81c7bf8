"""Index, PlanWindow, ToBatch and PinBatches: the node contract, delivery and what becomes of provisional rows."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from headrace import (
    ABSENT,
    DIT,
    Batch,
    CapacityError,
    Dense,
    Index,
    PlanWindow,
    Prefetch,
    RowBlock,
    Schema,
    Source,
    SourceRange,
    Sparse,
    Table,
    ToBatch,
)
from headrace.ingest.engine.conformance import check_node, check_node_over
from headrace.ingest.nodes.index import index_tables
from headrace.ingest.nodes.plan_window import PlanSteps, _enough, choose_pinned
from headrace.ingest.nodes.prefetch_batches import PrefetchBatches
from tests.support.batches import digest

SCHEMA = Schema(sparse=(Sparse(name="a"), Sparse(name="b", table="a"), Sparse(name="c", multi_hot=True)))


def blocks(count: int = 6, rows: int = 4) -> list[RowBlock]:
    rng = np.random.default_rng(1)
    out = []
    for i in range(count):
        ids = rng.integers(0, 12, (2, rows))
        data = pa.record_batch(
            {
                "a": pa.array([None if v == 3 else int(v) for v in ids[0]], pa.uint32()),
                "b": pa.array(ids[1], pa.uint32()),
                "c": pa.array([list(range(int(v) % 3)) for v in ids[0]], pa.list_(pa.uint32())),
            }
        )
        out.append(RowBlock(data, Source(("f",), (SourceRange(0, i * rows, rows),))))
    return out


def new_index() -> DIT:
    return DIT(index_tables(SCHEMA))


def same(left: Batch, right: Batch) -> bool:
    """Equal but for places, which another index and another arena give."""
    places = frozenset({"locations", "slots"})
    return digest(left, without=places) == digest(right, without=places)


def planned(source, **options):
    options = {"window": 2, "capacity": 40, "verify": True, **options}
    return PlanWindow(Index(source, SCHEMA, new_index()), SCHEMA, **options)


def steps(source, **options):
    options = {"window": 2, "capacity": 40, "verify": True, **options}
    return PlanSteps(Index(source, SCHEMA, new_index()), SCHEMA, **options)


CHAINS = {
    "window": planned,
    "no window": lambda source: planned(source, window=0, hot_rows=0),
    "long window": lambda source: planned(source, window=50, hot_rows=4),
    "prefetch": lambda source: Prefetch(planned(source)),
    "batches": lambda source: PrefetchBatches(steps(source)),
    "batches, one thread": lambda source: PrefetchBatches(steps(source), num_workers=1),
    "evaluation": lambda source: ToBatch(Index(source, SCHEMA, new_index(), insert=False)),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_the_node_contract(chain):
    check_node(lambda: chain(blocks()), equal=same)
    check_node_over(chain, items=blocks(), equal=same)


def test_index_alone_delivers_what_it_gives():
    index, seen = new_index(), set()
    with Index(blocks(), SCHEMA, index) as node:
        for item in node:
            seen.update(location for g in item.groups for location in g.locations.tolist())
            assert index.num_provisional == 0
            assert len(index) == len(seen)


@pytest.mark.parametrize("window", [0, 1, 4, 50])
def test_rows_are_committed_with_the_batch_that_brought_them(window):
    index, seen = new_index(), set()
    with PlanWindow(Index(blocks(), SCHEMA, index), SCHEMA, window=window, capacity=40) as node:
        for batch in node:
            seen.update(batch.groups[0].locations.tolist())
            assert sorted(index.snapshot().column("location").to_pylist()) == sorted(seen)
    assert index.num_provisional == 0


@pytest.mark.parametrize("window", [0, 3])
def test_uses_count_the_delivered_batches_of_each_row(window):
    index, uses = new_index(), Counter()
    with PlanWindow(Index(blocks(), SCHEMA, index), SCHEMA, window=window, capacity=40) as node:
        for batch in node:
            uses.update(batch.groups[0].locations.tolist())
            places = np.array(list(uses), np.uint64)
            assert index.uses(places).tolist() == list(uses.values())
    with ToBatch(Index(blocks(), SCHEMA, index, insert=False)) as evaluation:
        assert sum(1 for _ in evaluation) == 6
    assert index.uses(places).tolist() == list(uses.values())


def test_reset_and_close_undo_what_was_read_ahead():
    index = new_index()
    node = PlanWindow(Index(blocks(), SCHEMA, index), SCHEMA, window=4, capacity=40)
    places = next(node).groups[0].locations.numpy()
    one = index.snapshot()
    assert index.num_provisional > 0
    node.reset()
    assert index.num_provisional == 0
    assert index.snapshot().equals(one)
    next(node)  # delivered again
    node.close()
    assert index.num_provisional == 0
    assert index.snapshot().drop_columns("uses").equals(one.drop_columns("uses"))
    assert set(index.uses(places).tolist()) == {2.0}


def test_an_index_that_was_closed_first_does_not_stop_the_chain_from_closing():
    index = new_index()
    node = PlanWindow(Index(blocks(), SCHEMA, index), SCHEMA, window=2, capacity=40)
    next(node)
    index.close()
    node.close()


def test_evaluation_leaves_the_provisional_rows_of_training_alone():
    index = new_index()
    train = PlanWindow(Index(blocks(), SCHEMA, index), SCHEMA, window=4, capacity=40)
    next(train)
    ahead = index.num_provisional
    with ToBatch(Index(blocks(2), SCHEMA, index, insert=False)) as evaluation:
        assert sum(b.num_rows for b in evaluation) == 8
    assert index.num_provisional == ahead > 0
    assert sum(b.num_rows for b in train) == 20


def steps_of(node):
    return [(b.plan.run, b.plan.step, b.plan.groups[0].r_rows, b.num_rows) for b in node]


def grown_blocks() -> list[RowBlock]:
    """Twelve blocks of the same three ids, then one of thirty others."""
    small = [[1, 2, 3]] * 12
    out = []
    for i, ids in enumerate([*small, list(range(101, 131)), *small[:2]]):
        column = pa.array(ids, pa.uint32())
        lists = pa.array([[]] * len(ids), pa.list_(pa.uint32()))
        data = pa.record_batch({"a": column, "b": column, "c": lists})
        out.append(RowBlock(data, Source(("f",), (SourceRange(0, 100 * i, len(ids)),))))
    return out


@pytest.mark.parametrize("window", [0, 2, 50])
def test_pinned_rows_give_way_to_a_batch_that_does_not_fit_beside_them(window, monkeypatch):
    monkeypatch.setattr("headrace.ingest.nodes.plan_window.PEEK_BATCHES", 5)  # the large batch comes later
    with planned(grown_blocks(), window=window, capacity=30, hot_rows=3) as node:
        steps = steps_of(node)
    assert [rows for *_, rows in steps] == [3] * 12 + [30] + [3] * 2
    assert [r_rows for *_, r_rows, _ in steps][-1] == 0
    first = [run for run, *_ in steps].index(steps[-1][0])
    assert [step for _, step, *_ in steps] == [*range(first), *range(len(steps) - first)]
    assert first == max(0, 12 - window)


def test_why_fewer_rows_are_pinned_is_told(monkeypatch):
    monkeypatch.setattr("headrace.ingest.nodes.plan_window.PEEK_BATCHES", 5)
    for options, why in (
        ({"capacity": 30, "hot_rows": 1}, None),
        ({"capacity": 30, "hot_rows": "auto"}, None),
        ({"capacity": 40, "hot_rows": 39}, "they are chosen from the first 5 batches, which have no more unique rows"),
        ({"capacity": 4, "hot_rows": 3}, "an arena of 4 rows has no room for more beside a batch of 3 unique rows"),
    ):
        with planned(grown_blocks(), window=2, **options) as node:
            assert node.why_fewer_hot == ()
            next(node)
            assert node.why_fewer_hot == (why,), options
    with planned(grown_blocks(), window=50, capacity=30, hot_rows=3) as node:  # the large batch is known at once
        next(node)
        assert node.why_fewer_hot == ("an arena of 30 rows does not hold a later batch beside them",)


@pytest.mark.parametrize("hot_rows", [0, 3, "auto"])
@pytest.mark.parametrize("window", [0, 2, 50])
def test_a_batch_that_does_not_fit_at_all_is_refused_in_its_place(window, hot_rows):
    with planned(grown_blocks(), window=window, capacity=29, hot_rows=hot_rows) as node:
        got = []
        with pytest.raises(CapacityError, match="30") as caught:
            got.extend(node)
    assert caught.value.rows_needed == 30
    assert [b.num_rows for b in got] == [3] * 12
    assert "row 1200 of f" in " ".join(caught.value.headrace_context)


def test_the_row_layout_that_does_not_fit_is_named():
    schema = replace(SCHEMA, tables=(Table(name="c", dim=4),))
    source = blocks(rows=30)  # ids of table a are 0 to 11, or missing; of c 0 and 1
    words = "table 'a' (dim 16, rowwise_adagrad)"
    node = PlanWindow(Index(source, schema, DIT(index_tables(schema))), schema, window=2, capacity=5)
    with node, pytest.raises(CapacityError, match=re.escape(f"the arena of {words} has 5 rows")) as caught:
        next(node)
    assert caught.value.layout == words
    with planned(source, capacity=5) as node, pytest.raises(CapacityError, match="the arena has 5 rows") as caught:
        next(node)
    assert caught.value.layout is None


def test_a_schema_without_sparse_columns_is_planned_and_verified():
    schema = Schema(dense=(Dense(name="d"),))
    rows = [RowBlock(pa.record_batch({"d": pa.array([i], pa.int64())}), Source(("f",), (SourceRange(0, i, 1),)))
            for i in range(5)]  # fmt: skip
    chain = PlanWindow(Index(rows, schema, DIT([])), schema, window=2, verify=True)
    with chain:
        assert [b.dense.item() for b in chain] == [0, 1, 2, 3, 4]


def test_an_index_of_other_tables_is_refused():
    other = Schema(sparse=(Sparse(name="c", multi_hot=True), Sparse(name="a"), Sparse(name="b", table="a")))
    with pytest.raises(ValueError, match="other tables than the schema's: table 'a'"):
        Index(blocks(), SCHEMA, DIT(index_tables(other)))
    with pytest.raises(ValueError, match="made for 1 tables"):
        Index(blocks(), SCHEMA, DIT(index_tables(SCHEMA)[:1]))


def test_one_loader_at_a_time_reads_ahead_into_an_index():
    index = new_index()
    first = PlanWindow(Index(blocks(), SCHEMA, index), SCHEMA, window=2, capacity=40)
    second = PlanWindow(Index(blocks(), SCHEMA, index), SCHEMA, window=2, capacity=40)
    next(first)
    with pytest.raises(RuntimeError, match="another loader"):
        next(second)
    second.close()
    assert sum(b.num_rows for b in first) == 20  # undisturbed
    second.reset()
    assert sum(b.num_rows for b in second) == 24  # its turn, since the first has ended
    first.close()
    second.close()


def test_evaluation_sees_committed_rows_only():
    index = new_index()
    train = PlanWindow(Index(blocks(), SCHEMA, index), SCHEMA, window=4, capacity=40)
    next(train)
    committed = set(index.snapshot().column("location").to_pylist())
    assert index.num_provisional > 0
    with ToBatch(Index(blocks(), SCHEMA, index, insert=False)) as evaluation:
        found = {x for b in evaluation for x in b.groups[0].locations.tolist()} - {int(ABSENT)}
    assert found == committed
    train.close()


def test_pinned_rows_are_the_most_present_ones_and_leave_room():
    batches = [np.array(b, np.uint64) for b in ([5, 1, 2], [5, 1], [5, 9], [5, 8])]
    assert choose_pinned(batches, capacity=100, hot_rows=2).tolist() == [5, 1]
    assert choose_pinned(batches, capacity=4, hot_rows=3).tolist() == [5]  # 3 rows of the largest batch must fit
    assert choose_pinned(batches, capacity=100, hot_rows="auto").tolist() == [5]  # in more than half of the batches
    assert choose_pinned(batches, capacity=3, hot_rows="auto").tolist() == []


def test_pinning_gives_its_warning_and_changes_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        pinned = PrefetchBatches(steps(blocks()), pin_memory=True)
    with pinned, Prefetch(planned(blocks())) as plain:
        assert [digest(b) for b in pinned] == [digest(b) for b in plain]
        assert pinned.get_state() == plain.get_state()  # a run saved with it continues without it


@pytest.mark.parametrize("num_workers", [1, 2])
def test_batches_made_by_threads_are_those_of_one_node(num_workers):
    with planned(blocks()) as one, PrefetchBatches(steps(blocks()), num_workers=num_workers) as other:
        assert [digest(b) for b in one] == [digest(b) for b in other]
        assert one.get_state()["source"] == other.get_state()["source"]["source"]


@pytest.mark.parametrize(
    ("rows", "batches"),
    [(1, 100), (2621, 100), (2622, 100), (5000, 53), (8192, 32), (16384, 16), (1 << 20, 16)],
)
def test_hot_rows_are_chosen_from_a_bounded_head_of_the_stream(rows, batches):
    assert next(n for n in range(1000) if _enough(n, n * rows)) == batches
