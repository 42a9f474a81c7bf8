"""Ctrl-C within next(), wherever it comes: no wait, no item lost or given twice, without being told."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from itertools import count
from typing import Any

import pytest

from headrace.ingest.engine.conformance_sources import BlockingSource
from headrace.ingest.engine.errors import NodeClosedError, NodeInterruptedError
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.parallel_map import ParallelMap
from headrace.ingest.engine.prefetch import Prefetch
from tests.support.interrupts import InterruptAt

WATCHED = ("ingest/engine/", "threading.py", "test_interrupt.py")
BUSY_S = 5.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A handler may be called while garbage goes, a generator that is closed: Python then drops what it raises."""


class Ctrl(Exception):
    """Of a user's signal handler."""


class Double(Node[int]):
    def _next(self) -> int:
        item: int = self._pull()
        return 2 * item


def double(item: int) -> int:
    return 2 * item


CHAINS: dict[str, Any] = {
    "inline": lambda source: Double(source),
    "map": lambda source: ParallelMap(source, double, num_workers=0),
    "prefetch": lambda source: Prefetch(Double(source)),
    "threads": lambda source: ParallelMap(source, double, num_workers=2),
    "inline over prefetch": lambda source: Double(Prefetch(source)),
}


def chain_of(name: str) -> Any:
    node = CHAINS[name]([1, 2, 3, 4])
    inner = node
    while inner is not None:
        inner.busy_timeout_s = BUSY_S
        inner = inner._source
    return node


@pytest.mark.parametrize(("error", "every"), [(KeyboardInterrupt, 5), (Ctrl, 11)])
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("taken", [0, 1])
def test_an_item_is_handed_out_or_the_run_is_over(name, taken, error, every):
    for tried in count(1, every):
        with chain_of(name) as node:
            node.reset()
            got = [next(node) for _ in range(taken)]
            interrupt = InterruptAt(tried, WATCHED, error)
            item, raised = interrupt.during(node.next)
            if interrupt.left > 0:
                assert item == 2 * (taken + 1)
                break
            begun = time.monotonic()
            if raised is None:  # it came behind the return
                got.append(item)
            try:
                got += list(node)
            except (NodeInterruptedError, error):  # told; the state says where to go on
                state = node.get_state()
                with pytest.raises((NodeInterruptedError, error)):
                    next(node)
                node.reset(state)
                got += list(node)
            assert time.monotonic() - begun < BUSY_S, interrupt.place
            assert got == [2, 4, 6, 8], interrupt.place
            node.reset()
            assert list(node) == [2, 4, 6, 8], interrupt.place
    assert tried > 100


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("use", ["reset", "close", "get_state"])
def test_the_other_calls_are_taken_up_again(name, use):
    for tried in count(1, 7):
        with chain_of(name) as node:
            assert next(node) == 2
            state = node.get_state()
            call = {"reset": partial(node.reset, state), "close": node.close, "get_state": node.get_state}[use]
            interrupt = InterruptAt(tried, WATCHED)
            interrupt.during(call)
            if interrupt.left > 0:
                break
            begun = time.monotonic()
            if use == "get_state":
                assert node.get_state() == state
                assert list(node) == [4, 6, 8], interrupt.place
            elif use == "reset":
                try:
                    got = list(node)
                except (NodeInterruptedError, NodeClosedError):  # the threads may have been asked to end already
                    node.reset(state)
                    got = list(node)
                assert got == [4, 6, 8], interrupt.place
            node.close()
            assert node._released, interrupt.place
            assert getattr(node, "_run", None) is None, interrupt.place
            assert time.monotonic() - begun < BUSY_S, interrupt.place
    assert tried > 50


@pytest.mark.parametrize("name", ["prefetch", "threads"])
def test_a_real_signal_while_it_waits(name):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    source = BlockingSource([1, 2, 3])
    node = CHAINS[name](source)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            node.next()
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    with pytest.raises(NodeInterruptedError, match=r"reset\(get_state\(\)\) goes on"):
        node.next()
    source.open()
    node.reset(node.get_state())
    assert list(node) == [2, 4, 6]
    node.close()
