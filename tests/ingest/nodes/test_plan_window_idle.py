"""A stream that idles: what the window holds is handed out, planned, and nothing is lost or waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace import (
    DIT,
    CapacityError,
    Index,
    NodeClosedError,
    PlanWindow,
    Prefetch,
    RowBlock,
    Schema,
    Source,
    SourceRange,
    Sparse,
)
from headrace.ingest.engine.conformance import check_node
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import State, count_in
from headrace.ingest.nodes.index import index_tables
from tests.support.batches import digest

SCHEMA = Schema(sparse=(Sparse(name="a"),))
IDLE_S = 0.05


class Live(Node[RowBlock]):
    """Blocks that are there once `arrive` was told of them; the end once `finish` was called."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[RowBlock] = []
        self.ended = False
        self._changed = threading.Condition()
        self._given = 0
        self._woken = False

    def arrive(self, *id_lists: list[int]) -> None:
        with self._changed:
            for ids in id_lists:
                n = len(self.blocks)
                data = pa.record_batch({"a": pa.array(ids, pa.uint32())})
                self.blocks.append(RowBlock(data, Source(("f",), (SourceRange(0, 100 * n, len(ids)),))))
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _next(self) -> RowBlock:
        with self._changed:
            while self._given == len(self.blocks):
                if self.ended:
                    raise StopIteration
                if self._woken:
                    raise NodeClosedError("woken")
                self._changed.wait(30)
            self._given += 1
            return self.blocks[self._given - 1]

    def _interrupt(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _reset(self, state: State | None) -> None:
        self._woken = False
        self._given = 0 if state is None else count_in(self.name, state, "given")

    def _state(self) -> State:
        return {"given": self._given}


def live_chain(**options) -> tuple[Live, PlanWindow]:
    source = Live()
    options = {"window": 8, "capacity": 50, "verify": True, "idle_s": IDLE_S, **options}
    return source, PlanWindow(Prefetch(Index(source, SCHEMA, DIT(index_tables(SCHEMA)))), SCHEMA, **options)


def first_ids(batches) -> list[int]:
    return [int(batch.groups[0].unique_ids[0]) for batch in batches]


def take(node, count: int) -> Iterator:
    return (next(node) for _ in range(count))


@pytest.mark.parametrize("hot_rows", [0, 2, "auto"])
@pytest.mark.parametrize("window", [0, 1, 8, 1000])
def test_batches_held_are_handed_out_when_nothing_comes(window, hot_rows):
    source, node = live_chain(window=window, hot_rows=hot_rows)
    with node:
        source.arrive([1, 2], [2, 3], [3, 1])
        assert first_ids(take(node, 3)) == [1, 2, 3]  # the source has not ended
        source.arrive([4, 1])
        source.arrive([5, 1])
        assert first_ids(take(node, 2)) == [4, 5]
        source.arrive([6])
        source.finish()
        assert first_ids(node) == [6]
        assert node.stale_reads == 0
        with pytest.raises(StopIteration):
            next(node)


def test_the_window_shrinks_and_grows_again():
    source, node = live_chain(window=3, hot_rows=0)
    with node:
        source.arrive([1], [2], [3])
        batches = list(take(node, 3))
        source.arrive([1], [2], [3], [4])
        source.finish()
        batches += list(node)
    runs = [batch.plan.run for batch in batches]
    assert runs[:3] == [runs[0]] * 3
    assert runs[3:] == [runs[3]] * 4
    assert runs[3] != runs[0]  # what came later is planned anew, from an empty arena
    assert [batch.plan.step for batch in batches] == [0, 1, 2, 0, 1, 2, 3]
    # within a run the next batch's rows are fetched ahead, as far as it was known
    assert [len(batch.plan.groups[0].ahead.fetch_slots) for batch in batches] == [1, 1, 0, 1, 1, 1, 0]


def test_a_full_window_does_not_wait_for_the_stream_to_idle():
    source, node = live_chain(window=2, idle_s=1000.0, hot_rows=0)
    with node:
        source.arrive([1], [2], [3])
        began = time.monotonic()
        assert first_ids(take(node, 1)) == [1]
        assert time.monotonic() - began < 100


def test_without_idle_s_the_window_waits():
    source, node = live_chain(idle_s=None, hot_rows=0)
    with node:
        source.arrive([1])
        threading.Timer(0.3, source.finish).start()
        began = time.monotonic()
        assert first_ids(take(node, 1)) == [1]
        assert time.monotonic() - began >= 0.25


def test_nothing_held_waits_until_closed():
    _, node = live_chain()
    caught = []

    def read() -> None:
        try:
            next(node)
        except BaseException as error:
            caught.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    threading.Event().wait(4 * IDLE_S)
    assert reader.is_alive()
    began = time.monotonic()
    node.close()
    reader.join(30)
    assert time.monotonic() - began < 20
    assert isinstance(caught[0], NodeClosedError)


def test_a_batch_that_does_not_fit_is_refused_in_its_place_while_idle():
    source, node = live_chain(capacity=3, hot_rows=0)
    with node:
        source.arrive([1, 2], [1, 2, 3, 4])
        assert first_ids(take(node, 1)) == [1]
        with pytest.raises(CapacityError):
            next(node)


def test_an_error_of_the_source_comes_after_what_was_held():
    class Failing(Live):
        def _next(self) -> RowBlock:
            if self._given == 2:
                raise OSError("gone")
            return super()._next()

    source = Failing()
    node = PlanWindow(Prefetch(Index(source, SCHEMA, DIT(index_tables(SCHEMA)))), SCHEMA, window=8, idle_s=1000.0)
    with node:
        source.arrive([1], [2])
        assert first_ids(take(node, 2)) == [1, 2]
        with pytest.raises(OSError, match="gone"):
            next(node)


def test_the_node_contract():
    def make():
        source, node = live_chain(window=2)
        rng = np.random.default_rng(0)
        source.arrive(*(rng.integers(0, 9, 3).tolist() for _ in range(7)))
        source.finish()
        return node

    places = frozenset({"locations", "slots"})
    check_node(make, equal=lambda a, b: digest(a, without=places) == digest(b, without=places))


@pytest.mark.parametrize("k", range(5))
def test_a_state_of_a_stream_that_idles(k):
    source, node = live_chain()
    with node:
        source.arrive([1], [2], [3], [4])
        list(take(node, k))
        state = node.get_state()
        node.reset(state)
        source.arrive([5])
        source.finish()
        assert first_ids(node) == [1, 2, 3, 4, 5][k:]


def test_the_source_is_a_prefetch():
    index = Index(Live(), SCHEMA, DIT(index_tables(SCHEMA)))
    with pytest.raises(TypeError, match="idle_s takes a Prefetch as the source, got Index"):
        PlanWindow(index, SCHEMA, window=1, idle_s=1.0)
    with pytest.raises(ValueError, match="idle_s"):
        PlanWindow(Prefetch(index), SCHEMA, window=1, idle_s=0)
