"""The conformance kit: what every node has to do, as checks for the tests of whoever writes one.

    def test_my_node():
        check_node(lambda: MyNode([1, 2, 3]), expected=[2, 4, 6])
        check_node_over(MyNode, items=[1, 2, 3])

A failed check raises AssertionError. All waits are bounded.
"""

from __future__ import annotations

import json
import operator
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.formats.rows import RowBlock
from headrace.ingest.engine.conformance_sources import BlockingSource, FaultySource, ListSource, TwoPartError
from headrace.ingest.engine.errors import NodeClosedError, context_of
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import State

Equal = Callable[[Any, Any], Any]
MakeNode = Callable[[], Node[Any]]
MakeOver = Callable[[Node[Any]], Node[Any]]

_BOUND_S = 10.0
_MAX_STATE_BYTES = 4096


def check_node(
    make_node: MakeNode,
    *,
    expected: Sequence[Any] | None = None,
    equal: Equal = operator.eq,
    stable_states: bool = True,
) -> None:
    """Check a whole chain: end, states everywhere, epochs, closing, statistics.

    `make_node` makes the same chain each time; `expected` are its items (without it, those of a first run).
    `stable_states` = False lets a resumed run name the same places otherwise than an unbroken one, as happens when a
    reader cuts its files into other blocks after a resume.
    """
    with make_node() as node:
        items = list(node)
    if expected is not None:
        _expect_items(items, expected, equal, "first run")
    check_end(make_node, items, equal)
    check_states(make_node, items, equal, stable_states)
    check_bad_states(make_node, items, equal)
    check_epochs(make_node, items, equal)
    check_close(make_node, items, equal)


def check_node_over(make_over: MakeOver, *, items: Sequence[Any], equal: Equal = operator.eq) -> None:
    """Check a node over sources that fail, block and count: ``make_over(source)`` makes the node.

    `items` are at least three items for its source.
    """
    with make_over(ListSource(items)) as node:
        expected = list(node)
    check_source_errors(make_over, items, expected, equal)
    check_states_mean_delivered(make_over, items, expected, equal)
    check_reset_while_busy(make_over, items, expected, equal)
    check_close_while_blocked(make_over, items)


def equal_blocks(left: RowBlock, right: RowBlock) -> bool:
    """Same rows from the same places."""
    (left_file, left_row), (right_file, right_row) = left.source.arrays(), right.source.arrays()
    same_places = np.array_equal(left_file, right_file) and np.array_equal(left_row, right_row)
    return same_places and bool(left.data.equals(right.data))


# ---- whole chains -------------------------------------------------------------------------------------------------


def check_end(make_node: MakeNode, items: Sequence[Any], equal: Equal) -> None:
    """StopIteration for ever, and ``stats()`` that count what was delivered."""
    with make_node() as node:
        _expect_items(_drain(node), items, equal, "run")
        for _ in range(3):
            _expect_end(node, "after the end")
        _expect(node.stats().items == len(items), f"stats().items is {node.stats().items} of {len(items)}")
        _expect(node.all_stats()[-1].name == node.name, "all_stats() does not end with the node itself")


def check_states(make_node: MakeNode, items: Sequence[Any], equal: Equal, stable_states: bool = True) -> None:
    """For every k, at the end and after it: the state is plain and detached, and a resume gives the rest."""
    states = _states(make_node)
    for k, state in enumerate(states):
        rest, where = items[min(k, len(items)) :], f"resume at {k} of {len(items)}"
        _expect_plain(state, where)
        with make_node() as node:
            node.reset(json.loads(json.dumps(state)))
            _expect(node.get_state() == state, f"{where}: the state changed by loading it")
            if rest:
                _expect(bool(equal(node.next(), rest[0])), f"{where}: another item")
                again = node.get_state()
                if stable_states:
                    _expect(again == states[k + 1], f"{where}: the next state differs from that of an unbroken run")
                node.reset(again)  # a resume of a resume, on a used node
                _expect_items(_drain(node), rest[1:], equal, f"{where}, resumed again")
            _expect_end(node, where)
            node.reset()
            _expect_items(_drain(node), items, equal, f"{where}, then a new epoch")


def check_bad_states(make_node: MakeNode, items: Sequence[Any], equal: Equal) -> None:
    """States of another node or version, and what is no state, raise ValueError and change nothing."""
    with make_node() as node:
        state = node.get_state()
        others: list[Any] = [{**state, "node": "SomethingElse"}, {**state, "version": -1}, {}, []]
        for other in others:
            try:
                node.reset(other)
            except ValueError as error:
                _expect(node.name in str(error), f"the error does not name the node: {error}")
            else:
                raise AssertionError(f"reset() took {other!r}")
        _expect_items(_drain(node), items, equal, "run after refused states")


def check_epochs(make_node: MakeNode, items: Sequence[Any], equal: Equal) -> None:
    """Two epochs over one node; a break, then a whole epoch."""
    with make_node() as node:
        for _ in range(2):
            node.reset()
            _expect_items(_drain(node), items, equal, "epoch")
        node.reset()
        for _ in node:
            break
        node.reset()
        _expect_items(_drain(node), items, equal, "epoch after a break")


def check_close(make_node: MakeNode, items: Sequence[Any], equal: Equal) -> None:
    """Closing twice, by any thread, before, during and after a run; the state stays; reset() opens again."""
    never_used = make_node()
    never_used.close()
    _expect_closed(never_used)
    for taken in sorted({0, 1, len(items)} & set(range(len(items) + 1))):
        node = make_node()
        node.reset()
        for _ in range(taken):
            node.next()
        state = node.get_state()
        node.close()
        node.shutdown()
        _within(node.close, "close() by another thread")
        _expect(node.get_state() == state, "close() changed the state")
        _expect_closed(node)
        node.reset(state)
        _expect_items(_drain(node), items[taken:], equal, "run after close() and reset(state)")
        node.close()


# ---- over given sources -------------------------------------------------------------------------------------------


def check_source_errors(make_over: MakeOver, items: Sequence[Any], expected: Sequence[Any], equal: Equal) -> None:
    """Items before the error are delivered, the error comes again and again, and a resume loses nothing."""
    for at in sorted({0, len(items) // 2, len(items) - 1}):
        for error in (TwoPartError(7, "two parts"), OSError(5, "input/output error", "day_0.tsv"), KeyError(None)):
            source = FaultySource(items, at, error)
            with make_over(source) as node:
                got: list[Any] = []
                first = _take_until_error(node, type(error), got)
                _expect_items(got, expected[: len(got)], equal, f"items before the error at {at}")
                _expect(bool(context_of(first)), f"the error does not say where it was: {first!r}")
                for _ in range(3):
                    again = _take_until_error(node, type(error), [])
                    _expect(again.args == error.args, f"arguments lost: {again!r}")
                state = node.get_state()
                source.healed = True
                node.reset(state)
                _expect_items(_drain(node), expected[len(got) :], equal, f"after the error at {at} was mended")


def check_states_mean_delivered(
    make_over: MakeOver, items: Sequence[Any], expected: Sequence[Any], equal: Equal
) -> None:
    """However far the node has read ahead, its state is that of the last delivered item; a read-ahead is bounded."""
    source = ListSource(items)
    with make_over(source) as node:
        node.next()
        source.wait_for_calls(len(items) + 1, timeout_s=0.05)
        state = node.get_state()
    with make_over(ListSource(items)) as node:
        node.reset(state)
        _expect_items(_drain(node), expected[1:], equal, "resume while the node was reading ahead")


def check_reset_while_busy(make_over: MakeOver, items: Sequence[Any], expected: Sequence[Any], equal: Equal) -> None:
    """reset() while another thread waits in next(): never two threads in the source, and a whole run after it."""
    for wakes in (True, False):
        source = BlockingSource(items, wakes=wakes)
        with make_over(source) as node:
            consumer = _in_thread(node.next)
            _expect(source.wait_for_calls(1), "the source was not asked")
            opener = threading.Timer(0.05, source.open)
            opener.start()
            _within(node.reset, "reset() while busy")
            opener.join()
            source.open()
            consumer.join(_BOUND_S)
            _expect(not consumer.is_alive(), "the consumer still waits after reset()")
            _expect_items(_drain(node), expected, equal, "run after reset() while busy")
            _expect(source.most_inside == 1, "two threads were in the source")


def check_close_while_blocked(make_over: MakeOver, items: Sequence[Any]) -> None:
    """close() while the source blocks and a consumer waits: both come back."""
    source = BlockingSource(items)
    node = make_over(source)
    outcome: list[BaseException] = []

    def consume() -> None:
        try:
            while True:
                node.next()
        except (NodeClosedError, StopIteration) as error:
            outcome.append(error)

    consumer = _in_thread(consume)
    _expect(source.wait_for_calls(1), "the source was not asked")
    _within(node.close, "close() under a blocked source")
    consumer.join(_BOUND_S)
    _expect(not consumer.is_alive(), "the consumer still waits after close()")
    _expect(
        bool(outcome) and isinstance(outcome[0], NodeClosedError), f"the consumer saw {outcome!r}, not NodeClosedError"
    )


# ---- helpers ------------------------------------------------------------------------------------------------------


def _states(make_node: MakeNode) -> list[State]:
    """States after 0, 1, ... items, and after the end was seen; those asked for late equal those asked for at once."""
    states: list[State] = []
    with make_node() as node:
        while True:
            state = node.get_state()
            _mutilate(node.get_state())
            _expect(node.get_state() == state, "a returned state shares data with the node")
            states.append(state)
            try:
                node.next()
            except StopIteration:
                states.append(node.get_state())
                return states


def _mutilate(state: Any) -> None:
    for value in list(state.values()) if isinstance(state, dict) else list(state):
        if isinstance(value, (dict, list)):
            _mutilate(value)
    state.clear()


def _expect_plain(state: State, where: str) -> None:
    text = json.dumps(state)
    _expect(json.loads(text) == state, f"{where}: the state does not survive JSON: {state!r}")
    _expect(len(text) <= _MAX_STATE_BYTES, f"{where}: the state has {len(text)} bytes")
    _expect(state["node"] != "" and state["version"] >= 1, f"{where}: no node and version in {state!r}")


def _drain(node: Node[Any]) -> list[Any]:
    items = []
    deadline = time.monotonic() + 6 * _BOUND_S
    while time.monotonic() < deadline:
        try:
            items.append(node.next())
        except StopIteration:
            return items
    raise AssertionError(f"no end after {len(items)} items")


def _take_until_error(node: Node[Any], kind: type[BaseException], items: list[Any]) -> BaseException:
    try:
        while True:
            items.append(node.next())
    except StopIteration:
        raise AssertionError(f"end of stream in place of {kind.__name__}, after {len(items)} items") from None
    except kind as error:
        _expect(type(error) is kind, f"{type(error).__name__} in place of {kind.__name__}")
        return error


def _in_thread(function: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        try:
            function()
        except (NodeClosedError, StopIteration):
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _within(function: Callable[[], Any], what: str) -> None:
    """Call `function` in another thread; its error is raised here, and more than the bound is an AssertionError."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_BOUND_S)
    _expect(not thread.is_alive(), f"{what} did not come back in {_BOUND_S:g} s")
    if errors:
        raise errors[0]


def _expect_closed(node: Node[Any]) -> None:
    try:
        item = node.next()
    except (NodeClosedError, StopIteration):
        return
    raise AssertionError(f"a closed node gave {item!r}")


def _expect_end(node: Node[Any], where: str) -> None:
    try:
        item = node.next()
    except StopIteration:
        return
    raise AssertionError(f"{where}: an item after the end: {item!r}")


def _expect_items(got: Sequence[Any], expected: Sequence[Any], equal: Equal, where: str) -> None:
    _expect(len(got) == len(expected), f"{where}: {len(got)} items, not {len(expected)}")
    for position, (left, right) in enumerate(zip(got, expected, strict=True)):
        _expect(bool(equal(left, right)), f"{where}: item {position} is {left!r}, not {right!r}")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
