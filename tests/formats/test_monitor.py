"""Waiting for what other threads change: woken, bounded, and whole after Ctrl-C at any instruction."""

from __future__ import annotations

import threading
import time
from itertools import count

import pytest

from headrace.formats import monitor
from headrace.formats.monitor import Monitor
from tests.support.interrupts import InterruptAt

WATCHED = ("formats/monitor.py",)


@pytest.fixture
def rarely(monkeypatch):
    """Nobody looks again without being told."""
    monkeypatch.setattr(monitor, "LOOK_AGAIN_S", 60.0)


def is_free(lock) -> bool:
    """Whether another thread gets the lock."""
    found: list[bool] = []

    def take():
        found.append(lock.acquire(timeout=10))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(20)
    return found == [True]


def test_each_that_waits_is_told_of_a_change(rarely):
    shared, values, found = Monitor(), [], []
    looked = threading.Semaphore(0)

    def look():
        looked.release()
        return values[:1]

    threads = [threading.Thread(target=lambda: found.append(shared.wait_for(look, 30))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert looked.acquire(timeout=10)
    with shared.lock:
        values.append(7)
        shared.changed()
    for thread in threads:
        thread.join(10)
    assert found == [[7]] * 3
    assert shared._waiting == []


def test_what_is_true_is_not_waited_for_and_may_act():
    shared, taken = Monitor(), []
    assert shared.wait_for(lambda: taken.append(1) or "x", 0.0) == "x"
    assert taken == [1]


@pytest.mark.parametrize("timeout_s", [0.0, 0.05, -1.0])
def test_a_wait_ends_with_what_is_seen_last(timeout_s):
    shared = Monitor()
    begun = time.monotonic()
    assert shared.wait_for(lambda: 0, timeout_s) == 0
    assert max(timeout_s, 0.0) <= time.monotonic() - begun < 10
    assert shared._waiting == []


def test_a_change_that_nobody_told_of_is_found(monkeypatch):
    monkeypatch.setattr(monitor, "LOOK_AGAIN_S", 0.01)
    shared, values = Monitor(), []
    threading.Timer(0.05, values.append, (1,)).start()
    assert shared.wait_for(lambda: bool(values), 30)


def test_a_change_while_it_looks_is_not_missed(rarely):
    """As a finalizer's, which runs in this thread while it holds the lock."""
    shared, looks = Monitor(), []

    def look():
        looks.append(1)
        if len(looks) == 1:
            with shared.lock:
                shared.changed()
        return len(looks) > 1

    begun = time.monotonic()
    assert shared.wait_for(look, 30)
    assert time.monotonic() - begun < 10


def test_a_wait_for_what_its_own_thread_keeps_from_happening_is_refused_at_once():
    """As of a handler that came while the thread held the lock: nobody could change anything before its timeout."""
    shared = Monitor()
    begun = time.monotonic()
    with shared.lock:
        assert shared.wait_for(lambda: [1], 600) == [1]
        with pytest.raises(RuntimeError, match="only note that the signal came"):
            shared.wait_for(list, 600)
    assert time.monotonic() - begun < 60
    assert is_free(shared.lock)
    assert shared.wait_for(list, 0.0) == []


def test_an_error_of_the_look_comes_out():
    shared = Monitor()
    with pytest.raises(KeyError):
        shared.wait_for(lambda: {}[1])
    assert is_free(shared.lock)
    assert shared._waiting == []


def test_ctrl_c_comes_out_as_it_is_and_the_lock_is_free():
    interrupted = 0
    for at in count(1):
        shared = Monitor()
        interrupt = InterruptAt(at, WATCHED)
        found, raised = interrupt.during(lambda shared=shared: shared.wait_for(lambda: False, 0.002))
        if interrupt.left > 0:
            break
        interrupted += raised is not None
        assert found is False or raised is not None
        assert is_free(shared.lock), interrupt.place
        assert shared.wait_for(lambda: True, 0.0)
        assert shared.wait_for(lambda: False, 0.0) is False
    assert interrupted > 20


def test_a_change_that_was_interrupted_is_found_by_all(monkeypatch):
    monkeypatch.setattr(monitor, "LOOK_AGAIN_S", 0.02)
    for at in count(1):
        shared, values, found = Monitor(), [], []
        threads = [
            threading.Thread(target=lambda s=shared, v=values, f=found: f.append(s.wait_for(lambda: bool(v), 30)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()

        def change(shared=shared, values=values):
            with shared.lock:
                values.append(1)
                shared.changed()

        interrupt = InterruptAt(at, (*WATCHED, "test_monitor.py"))
        interrupt.during(change)
        values.append(1)
        for thread in threads:
            thread.join(10)
        assert found == [True, True], interrupt.place
        if interrupt.left > 0:
            break
    assert at > 5
