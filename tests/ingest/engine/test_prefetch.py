import threading
import time

import pytest
from torchdata.nodes import IterableWrapper

from headrace.ingest.engine.conformance import check_node, check_node_over
from headrace.ingest.engine.conformance_sources import BlockingSource, FaultySource, ListSource, TwoPartError
from headrace.ingest.engine.errors import NodeClosedError
from headrace.ingest.engine.prefetch import Prefetch


@pytest.mark.parametrize("prefetch_factor", [1, 2, 7])
@pytest.mark.parametrize("wrap", [list, IterableWrapper], ids=["list", "torchdata"])
def test_conforms(prefetch_factor: int, wrap) -> None:
    check_node(lambda: Prefetch(wrap([1, None, 3, 4]), prefetch_factor=prefetch_factor), expected=[1, None, 3, 4])


@pytest.mark.parametrize("prefetch_factor", [1, 2, 7])
def test_conforms_over_bad_sources(prefetch_factor: int) -> None:
    check_node_over(lambda s: Prefetch(s, prefetch_factor=prefetch_factor), items=[1, None, 3, 4, 5])


def test_an_empty_source_ends_at_once() -> None:
    check_node(lambda: Prefetch([]), expected=[])


@pytest.mark.parametrize("prefetch_factor", [0, -1, True, 2.0, None])
def test_wrong_prefetch_factor_is_refused(prefetch_factor: object) -> None:
    with pytest.raises(ValueError, match="Prefetch: prefetch_factor"):
        Prefetch([1], prefetch_factor=prefetch_factor)  # type: ignore[arg-type]


def test_never_more_than_prefetch_factor_items_ahead() -> None:  # P11
    source = ListSource(range(100))
    with Prefetch(source, prefetch_factor=3) as node:
        for taken in range(1, 50):
            next(node)
            assert source.wait_for_calls(taken + 3)
            assert source.calls == taken + 3
    assert source.calls <= 53


def test_nothing_is_read_before_the_first_item_is_asked_for() -> None:
    source = ListSource([1, 2])
    with Prefetch(source) as node:
        node.reset()
        node.get_state()
        assert source.calls == 0


def test_a_slow_source_times_out_by_name() -> None:
    source = BlockingSource([1, 2])
    with Prefetch(source, timeout_s=0.05) as node:
        with pytest.raises(TimeoutError, match=r"Prefetch: no item within timeout_s=0\.05 s"):
            next(node)
        source.open()
        node.reset()
        assert list(node) == [1, 2]


def test_items_before_an_error_come_first_then_the_error_for_ever() -> None:
    source = FaultySource([1, 2, 3], 2, TwoPartError(7, "text"))
    with Prefetch(source, prefetch_factor=8) as node:
        next(node)
        assert source.wait_for_calls(3)
        assert next(node) == 2
        for _ in range(3):
            with pytest.raises(TwoPartError) as caught:
                next(node)
            assert caught.value.args == (7, "text")
            assert caught.value.headrace_context == ["in node ListSource", "in node Prefetch"]


def test_close_under_a_blocked_producer() -> None:  # L53
    source = ListSource(range(100))
    node = Prefetch(source)
    next(node)
    assert source.wait_for_calls(3)  # the buffer is full, the thread waits for room
    started = time.monotonic()
    node.close()
    assert time.monotonic() - started < 2
    assert threading.active_count() == 1 or not [t for t in threading.enumerate() if t.name.startswith("headrace-")]


def test_close_wakes_a_consumer_of_a_chain_that_waits_at_the_far_end() -> None:  # L53, L61
    source = BlockingSource([1])
    node = Prefetch(Prefetch(Prefetch(source)))
    seen: list[BaseException] = []

    def consume() -> None:
        try:
            node.next()
        except BaseException as error:
            seen.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert source.wait_for_calls(1)
    started = time.monotonic()
    node.close()
    consumer.join(10)
    assert time.monotonic() - started < 2
    assert [type(e) for e in seen] == [NodeClosedError]


def test_reset_wakes_a_chain_that_waits_at_the_far_end() -> None:
    source = BlockingSource([1, 2])
    node = Prefetch(Prefetch(source), timeout_s=0.05)
    with pytest.raises(TimeoutError):
        next(node)
    started = time.monotonic()
    node.reset()
    assert time.monotonic() - started < 5
    source.open()
    assert list(node) == [1, 2]
    node.close()


def test_close_gives_up_a_stuck_source_with_a_warning() -> None:  # L54
    source = BlockingSource([1], wakes=False)
    node = Prefetch(source, timeout_s=0.05)
    node.close_timeout_s = 0.1
    with pytest.raises(TimeoutError):
        next(node)
    started = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"Prefetch.close\(\): not stopped after 0.1 s.*headrace-Prefetch-0"):
        node.close()
    node.close()
    assert time.monotonic() - started < 2
    node.busy_timeout_s = 0.1
    with pytest.raises(TimeoutError, match=r"Prefetch.reset\(\): still busy"):  # never a second thread in the source
        node.reset()
    source.open()
    node.busy_timeout_s = 10
    node.reset()
    assert list(node) == [1]
    assert source.most_inside == 1
    node.close()


def test_stats_of_the_slow_side() -> None:
    with Prefetch(range(20), prefetch_factor=2) as node:
        for _ in node:
            time.sleep(0.005)
        stats = node.stats()
    assert stats.items == 20
    assert stats.wait_out_s > 0.03  # the trainer was the slow side
    assert stats.queue_depth <= 3


def test_ready_says_whether_next_would_wait() -> None:
    source = BlockingSource([1, 2, 3], at=2)
    with Prefetch(source, prefetch_factor=1) as node:
        assert node.ready(0.01)  # nothing was asked for yet: next() starts the work
        for expected in (1, 2):
            assert next(node) == expected
            if expected == 1:
                assert node.ready(60)
                assert node.ready(0.001)  # asking takes nothing
        began = time.monotonic()
        assert not node.ready(0.05)
        assert time.monotonic() - began >= 0.05
        source.open()
        assert node.ready(60)
        assert next(node) == 3
        assert node.ready(60)  # the end is something, too
        with pytest.raises(StopIteration):
            next(node)


def test_ready_is_woken_by_close() -> None:
    node = Prefetch(BlockingSource([1, 2], at=1))
    next(node)
    threading.Timer(0.1, node.close).start()
    began = time.monotonic()
    assert node.ready(100)  # next() would raise at once
    assert time.monotonic() - began < 60
    with pytest.raises(NodeClosedError):
        next(node)


def test_ready_for_an_error() -> None:
    with Prefetch(FaultySource([1, 2], at=1, error=TwoPartError("a", "b"))) as node:
        next(node)
        assert node.ready(60)
        with pytest.raises(TwoPartError):
            next(node)
