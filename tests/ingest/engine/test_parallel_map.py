import random
import threading
import time
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.nodes import IterableWrapper

from headrace.ingest.engine.conformance import check_node, check_node_over
from headrace.ingest.engine.conformance_sources import ListSource, TwoPartError
from headrace.ingest.engine.parallel_map import ParallelMap

WORKERS = [0, 1, 4]


def negative(item: int) -> int:
    return -item


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("wrap", [list, IterableWrapper], ids=["list", "torchdata"])
def test_conforms(num_workers: int, wrap) -> None:
    check_node(
        lambda: ParallelMap(wrap(range(7)), negative, num_workers=num_workers), expected=[0, -1, -2, -3, -4, -5, -6]
    )


@pytest.mark.parametrize("num_workers", WORKERS)
def test_conforms_over_bad_sources(num_workers: int) -> None:
    check_node_over(lambda s: ParallelMap(s, negative, num_workers=num_workers), items=range(9))


@pytest.mark.parametrize("num_workers", [-1, True, 1.0, None])
def test_wrong_options_are_refused(num_workers: object) -> None:
    with pytest.raises(ValueError, match="ParallelMap: num_workers"):
        ParallelMap([1], negative, num_workers=num_workers)  # type: ignore[arg-type]


def test_order_is_the_sources_whatever_the_threads_do() -> None:
    jitter = random.Random(5)
    naps = [jitter.random() / 500 for _ in range(60)]

    def slow(item: int) -> int:
        time.sleep(naps[item])
        return item

    with ParallelMap(range(60), slow, num_workers=4) as node:
        assert list(node) == list(range(60))


def test_workers_work_side_by_side() -> None:
    meeting = threading.Barrier(4)

    def meet(item: int) -> int:
        meeting.wait(10)
        return item

    with ParallelMap(range(8), meet, num_workers=4) as node:
        assert list(node) == list(range(8))


def test_bounded_memory() -> None:
    source = ListSource(range(1000))
    with ParallelMap(source, negative, num_workers=2, prefetch_factor=3) as node:
        for taken in range(1, 20):
            next(node)
            assert source.wait_for_calls(taken + 6)
            assert source.calls == taken + 6


@pytest.mark.parametrize("num_workers", WORKERS)
def test_an_error_stands_at_its_items_place_and_a_retry_gives_the_item(num_workers: int) -> None:  # L61, L62
    broken = {3}

    def fragile(item: int) -> int:
        if item in broken:
            raise TwoPartError(item, "bad")
        time.sleep(0.002 * (item % 3))
        return item

    with ParallelMap(range(8), fragile, num_workers=num_workers) as node:
        assert [next(node) for _ in range(3)] == [0, 1, 2]
        for _ in range(3):
            with pytest.raises(TwoPartError) as caught:
                next(node)
            assert caught.value.args == (3, "bad")
        state = node.get_state()
        broken.clear()
        node.reset(state)
        assert list(node) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_stop_iteration_out_of_the_function_is_no_end(num_workers: int) -> None:
    def ends(item: int) -> int:
        return next(iter([])) if item == 1 else item

    with ParallelMap(range(3), ends, num_workers=num_workers) as node:
        assert next(node) == 0
        for _ in range(2):
            with pytest.raises(RuntimeError, match="raised StopIteration"):
                next(node)


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(0, 12),
    num_workers=st.sampled_from(WORKERS),
    prefetch_factor=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 5), max_size=4),
)
def test_any_sequence_of_resumes_gives_each_item_once(
    length: int, num_workers: int, prefetch_factor: int, cuts: list[int]
) -> None:  # L23
    got: list[int] = []
    state = None
    for cut in [*cuts, length + 1]:
        with ParallelMap(range(length), negative, num_workers=num_workers, prefetch_factor=prefetch_factor) as node:
            node.reset(state)
            got += islice(node, cut)
            state = node.get_state()
    assert got == [-i for i in range(length)]
