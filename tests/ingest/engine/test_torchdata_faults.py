"""The faults of torchdata 0.11 that were reproduced, each as a test that our engine does not have it.

(`PinMemory` fails on a CPU build: we have no such node; `Batch.pin_memory` is called by the trainer.)
"""

import threading

import pytest
from torchdata.nodes import Batcher, Loader, ParallelMapper, Prefetcher

from headrace.ingest.engine.conformance_sources import BlockingSource, FaultySource, ListSource, TwoPartError
from headrace.ingest.engine.parallel_map import ParallelMap
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.engine.source import IterableSource


def same(item):
    return item


CHAINS = {
    "prefetch": Prefetch,
    "map_inline": lambda source: ParallelMap(source, same, num_workers=0),
    "map_threads": lambda source: ParallelMap(source, same, num_workers=3),
    "map_over_prefetch": lambda source: ParallelMap(Prefetch(source), same, num_workers=2),
}
every_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())


@every_chain
def test_none_is_an_item(chain) -> None:  # L35
    with chain([None, 1, None]) as node:
        assert list(node) == [None, 1, None]
    with chain([None, 1, None]) as node:
        assert list(Loader(node)) == [None, 1, None]


@every_chain
def test_counts_are_absolute_after_a_resume_of_a_resume(chain) -> None:  # L22
    state = None
    for taken in range(4):
        with chain(IterableSource(range(10, 20))) as node:
            node.reset(state)
            assert next(node) == 10 + taken
            state = node.get_state()
    while "source" in state:
        state = state["source"]
    assert state["yielded"] == 4


@every_chain
def test_a_source_error_neither_hangs_nor_ends_the_epoch(chain) -> None:  # L61, L62
    with chain(FaultySource([1, 2, 3], 1, OSError(5, "input/output error"))) as node:
        assert next(node) == 1
        for _ in range(5):
            with pytest.raises(OSError, match="input/output error") as caught:
                next(node)
            assert caught.value.errno == 5


@every_chain
def test_exceptions_of_two_arguments_keep_type_and_arguments(chain) -> None:
    with chain(FaultySource([1], 0, TwoPartError(7, "text"))) as node:
        for _ in range(2):
            with pytest.raises(TwoPartError) as caught:
                next(node)
            assert caught.value.args == (7, "text")


@every_chain
def test_reset_during_a_slow_next_leaves_one_thread_in_the_source(chain) -> None:
    source = BlockingSource([1, 2, 3], wakes=False)
    with chain(source) as node:
        errors: list[BaseException] = []

        def consume() -> None:
            try:
                node.next()
            except BaseException as error:
                errors.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        assert source.wait_for_calls(1)
        opener = threading.Timer(0.05, source.open)
        opener.start()
        node.reset()
        consumer.join(10)
        opener.join()
        assert list(node) == [1, 2, 3]
        assert source.most_inside == 1


@every_chain
def test_states_share_nothing_with_the_node(chain) -> None:  # L35
    with chain([1, 2, 3]) as node:
        next(node)
        state = node.get_state()
        kept = str(state)
        next(node)
        assert str(state) == kept
        state["source"].clear()
        assert node.get_state()["source"] != {}


@every_chain
def test_load_then_state_is_the_same_state(chain) -> None:  # L19
    with chain(range(5)) as node:
        next(node)
        next(node)
        state = node.get_state()
    with chain(range(5)) as node:
        node.reset(state)
        assert node.get_state() == state
        assert next(node) == 2


@every_chain
def test_state_at_exactly_the_last_item_and_after_the_end(chain) -> None:  # L26, P51
    with chain(range(3)) as node:
        for _ in range(3):
            next(node)
        at_last = node.get_state()
        with pytest.raises(StopIteration):
            next(node)
        after_end = node.get_state()
    for state in (at_last, after_end):
        with chain(range(3)) as node:
            node.reset(state)
            with pytest.raises(StopIteration):
                next(node)
            loader = Loader(node)
            assert list(loader) == [0, 1, 2]


@every_chain
def test_torchdata_nodes_take_ours_for_sources(chain) -> None:
    with chain(ListSource(range(5))) as node:
        assert list(Loader(Batcher(node, 2, drop_last=False))) == [[0, 1], [2, 3], [4]]
        assert list(Loader(Prefetcher(node, 2))) == [0, 1, 2, 3, 4]
        assert list(Loader(ParallelMapper(node, same, num_workers=1, method="thread"))) == [0, 1, 2, 3, 4]
