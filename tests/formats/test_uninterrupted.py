"""Blocks that Ctrl-C does not part."""

from __future__ import annotations

import signal
import threading

import pytest

from headrace.formats.uninterrupted import uninterrupted


@pytest.fixture(autouse=True)
def ctrl_c():
    """Python's own handler, which a runner may have replaced."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_signal_is_told_at_its_end():
    done = []

    @uninterrupted()
    def use():
        signal.raise_signal(signal.SIGINT)
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        use()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_blocks_within_blocks_and_errors():
    done = []

    @uninterrupted()
    def use():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        done.append(1)
        raise MemoryError

    with pytest.raises(KeyboardInterrupt) as found:
        use()
    assert done == [1]
    assert isinstance(found.value.__context__, MemoryError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_that_are_not_for_python():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_pass_through():
    done = []

    def use():
        with uninterrupted():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(60)
    assert done == [signal.default_int_handler]


def test_every_handler_is_back_although_one_raises_while_they_are_put_back():
    def terminated(number, frame):
        raise SystemExit(3)

    @uninterrupted()
    def use():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            use()
        handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
        assert handlers == [terminated, signal.default_int_handler]
    finally:
        signal.signal(signal.SIGTERM, before)
