import os
import signal
import threading
import time
from typing import Any

import pytest
from torchdata.nodes import BaseNode, Loader

from headrace.ingest.engine.conformance import check_node, check_node_over
from headrace.ingest.engine.conformance_sources import BlockingSource, FaultySource, ListSource, TwoPartError
from headrace.ingest.engine.errors import NodeClosedError, context_of
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.engine.state import State


class Double(Node[int]):
    """The docstring's first example."""

    def _next(self) -> int:
        return 2 * self._pull()


class Enumerate(Node[tuple[int, Any]]):
    """The docstring's second example."""

    def _next(self) -> tuple[int, Any]:
        item = self._pull()
        self.count += 1
        return self.count - 1, item

    def _reset(self, state: State | None) -> None:
        self._reset_source(state)
        self.count = state["count"] if state else 0

    def _state(self) -> State:
        return {"source": self._source_state(), "count": self.count}


def test_the_nodes_of_the_docstring_conform() -> None:
    check_node(lambda: Double([1, 2, 3]), expected=[2, 4, 6])
    check_node_over(Double, items=[1, 2, 3])
    check_node(lambda: Enumerate(["a", None]), expected=[(0, "a"), (1, None)])
    check_node_over(Enumerate, items=["a", None, "b"])


def test_a_chain_of_them_conforms() -> None:
    check_node(lambda: Enumerate(Prefetch(Double(Prefetch([1, 2])))), expected=[(0, 2), (1, 4)])
    check_node_over(lambda s: Enumerate(Prefetch(Double(Prefetch(s)))), items=[1, 2, 3, 4, 5, 6])


def test_next_after_the_end_is_the_end_for_ever() -> None:  # P9
    node = Double([1])
    assert list(node) == [2]
    for _ in range(100):
        with pytest.raises(StopIteration):
            node.next()


def test_the_end_lasts_even_if_the_hook_would_go_on() -> None:  # P9
    class Tail(Node[int]):
        """Like a file that grows: after the end there is more."""

        calls = 0

        def _next(self) -> int:
            self.calls += 1
            if self.calls == 2:
                raise StopIteration
            return self.calls

        def _reset(self, state: State | None) -> None:
            pass

    node = Tail()
    assert list(node) == [1]
    assert list(node) == []
    assert node.calls == 2


def test_the_state_survives_a_close_that_forgets() -> None:
    class Forgets(Enumerate):
        def _close(self) -> None:
            self.count = 0

    with Forgets([1, 2, 3]) as node:
        next(node)
    assert node.get_state()["count"] == 1


def test_each_item_is_pulled_once() -> None:  # P11
    source = ListSource([1, 2, 3])
    with Double(source) as node:
        assert list(node) == [2, 4, 6]
        assert source.calls == 4


def test_an_error_gains_context_and_keeps_type_arguments_and_traceback() -> None:
    node = Double(FaultySource([1, 2], 1, TwoPartError(7, "text")))
    assert next(node) == 2
    with pytest.raises(TwoPartError) as first:
        next(node)
    assert first.value.code == 7
    assert context_of(first.value) == ["in node ListSource", "in node Double"]
    with pytest.raises(TwoPartError) as second:
        next(node)
    assert second.value.args == (7, "text")
    assert context_of(second.value) == ["in node ListSource", "in node Double"]


def test_ctrl_c_loses_no_item() -> None:
    source = FaultySource([1, 2, 3], 1, KeyboardInterrupt())
    node = Double(source)
    assert next(node) == 2
    with pytest.raises(KeyboardInterrupt):
        next(node)
    source.healed = True
    node.reset(node.get_state())
    assert list(node) == [4, 6]


class FailsAfterPull(Node[int]):
    """Fails between taking an item and giving it."""

    broken = True

    def _next(self) -> int:
        item: int = self._pull()
        if item == 2 and self.broken:
            raise ValueError("item 2")
        return item


def test_state_after_an_error_is_before_the_failed_item() -> None:
    node = FailsAfterPull([1, 2, 3])
    assert next(node) == 1
    with pytest.raises(ValueError, match="item 2"):
        next(node)
    state = node.get_state()
    with pytest.raises(ValueError, match="item 2"):
        next(node)
    node.broken = False
    node.reset(state)
    assert list(node) == [2, 3]


def test_a_failed_reset_is_the_error_until_a_good_one() -> None:
    node = Double([1])
    with pytest.raises(ValueError, match="only 1"):
        node.reset(
            {
                "node": "Double",
                "version": 1,
                "source": {"node": "IterableSource", "version": 1, "yielded": 2},
            }
        )
    for call in (node.next, node.get_state):
        with pytest.raises(ValueError, match="only 1"):
            call()
    node.reset()
    assert list(node) == [2]


def test_the_last_loaded_state_wins() -> None:  # L34
    node = Double([1, 2, 3])
    states = [node.get_state() for _ in node]
    node.reset(states[0])
    node.reset(states[1])
    assert list(node) == [6]


def test_a_node_inside_itself_is_refused_and_goes_on() -> None:
    class Recursive(Node[int]):
        def _next(self) -> int:
            with pytest.raises(RuntimeError, match=r"Recursive.next\(\) was called from inside the node itself"):
                self.next()
            with pytest.raises(RuntimeError, match=r"Recursive.reset\(\) was called from inside"):
                self.reset()
            return self._pull() + 1

    assert list(Recursive([1, 2])) == [2, 3]


def test_close_from_inside_is_done_on_the_way_out() -> None:  # a signal handler closes while next() runs
    closed: list[str] = []

    class ClosesItself(Node[int]):
        def _next(self) -> int:
            item: int = self._pull()
            self.close()
            assert closed == []
            return item

        def _close(self) -> None:
            closed.append(self.name)

    node = ClosesItself([1, 2])
    assert next(node) == 1
    assert closed == ["ClosesItself"]
    with pytest.raises(NodeClosedError):
        next(node)
    assert closed == ["ClosesItself"]


def test_a_signal_handler_may_close_while_the_main_thread_waits() -> None:
    node = Prefetch(Prefetch(BlockingSource([1])))
    before = signal.signal(signal.SIGUSR1, lambda *_: node.close())
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(NodeClosedError):
            node.next()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert node._run is None


def test_reset_waits_for_a_slow_next_of_another_thread() -> None:
    source = BlockingSource([1, 2, 3], wakes=False)
    node = Double(source)
    got: list[int] = []
    consumer = threading.Thread(target=lambda: got.append(node.next()))
    consumer.start()
    assert source.wait_for_calls(1)
    threading.Timer(0.05, source.open).start()
    node.reset()
    consumer.join(10)
    assert got == [2]
    assert list(node) == [2, 4, 6]
    assert source.most_inside == 1


def test_waiting_for_a_busy_node_is_bounded() -> None:
    source = BlockingSource([1], wakes=False)
    node = Double(source)
    node.busy_timeout_s = 0.05
    consumer = threading.Thread(target=node.next, name="trainer")
    consumer.start()
    assert source.wait_for_calls(1)
    with pytest.raises(TimeoutError, match=r"Double.reset\(\): busy for 0.05 s: thread 'trainer' is in next\(\)"):
        node.reset()
    source.open()
    consumer.join(10)


def test_close_under_foreign_code_that_never_returns_is_bounded_and_says_so() -> None:
    source = BlockingSource([1], wakes=False)
    node = Double(source)
    node.close_timeout_s = 0.05
    consumer = threading.Thread(target=node.next, name="trainer", daemon=True)
    consumer.start()
    assert source.wait_for_calls(1)
    started = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"Double.close\(\): not stopped after 0.05 s.*'trainer' is in next"):
        node.close()
    assert time.monotonic() - started < 2
    source.open()
    consumer.join(10)


def test_an_error_in_close_does_not_keep_the_source_open() -> None:
    closed = []

    class Bad(Node[int]):
        def _close(self) -> None:
            raise OSError("cannot close")

    class Good(Node[int]):
        def _close(self) -> None:
            closed.append("source")

    node = Bad(Good([1]))
    with pytest.raises(OSError, match="cannot close"):
        node.close()
    assert closed == ["source"]
    node.close()


def test_close_in_exit_after_an_error() -> None:
    source = FaultySource([1], 0, ValueError("first"))
    with pytest.raises(ValueError, match="first"), Prefetch(source) as node:
        next(node)
    assert node._run is None


class Journal(Node[int]):
    """Notes what was delivered."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.log: list[object] = []

    def _next(self) -> int:
        item: int = self._pull()
        return item

    def delivered(self, item: object) -> None:
        self.log.append(item)
        super().delivered(item)


@pytest.mark.parametrize("build", [lambda n: n, Double, Prefetch, lambda n: Double(Prefetch(Prefetch(n)))])
def test_an_item_is_delivered_once_when_the_outermost_node_hands_it_out(build) -> None:
    journal = Journal(ListSource([1, 2, 3, 4]))
    node = build(journal)
    expected: list[object] = []
    for item in node:
        expected.append(item)
        assert journal.log == expected
    assert len(expected) == 4
    node.close()


def test_what_was_only_produced_is_not_delivered() -> None:
    source = ListSource([1, 2, 3, 4])
    journal = Journal(source)
    with Prefetch(journal, prefetch_factor=3) as node:
        next(node)
        assert source.wait_for_calls(4)
        assert journal.log == [1]


def test_stats_tell_who_waited() -> None:
    class Slow(Node[int]):
        def _next(self) -> int:
            item: int = self._pull()
            time.sleep(0.01)
            return item

    with Double(Slow([1, 2, 3])) as node:
        list(node)
        source, slow, double = node.all_stats()
    assert [s.name for s in (source, slow, double)] == ["IterableSource", "Slow", "Double"]
    assert slow.items == double.items == 3
    assert slow.busy_s >= 0.03
    assert double.wait_in_s >= 0.03
    assert double.busy_s < 0.03
    assert double.next_s >= double.wait_in_s
    assert slow.p50_ms > 8


def test_stats_are_of_the_run() -> None:
    node = Double([1, 2])
    list(node)
    node.reset()
    next(node)
    assert node.stats().items == 1


def test_torchdata_loader_works_with_our_nodes() -> None:
    loader = Loader(Prefetch(Double([1, 2, 3])))
    assert list(loader) == [2, 4, 6]
    assert list(loader) == [2, 4, 6]
    for _ in loader:
        break
    state = loader.state_dict()
    again = Loader(Prefetch(Double([1, 2, 3])))
    again.load_state_dict(state)
    assert list(again) == [4, 6]
    assert list(again) == [2, 4, 6]  # L21, P52: the epoch after a resume is whole


def test_our_nodes_are_torchdata_nodes() -> None:
    assert isinstance(Double([1]), BaseNode)
    node = Double([1])
    assert node.state_dict() == node.get_state()
