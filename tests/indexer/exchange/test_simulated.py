"""How long simulated ranks are waited for."""

from __future__ import annotations

import threading
import time

import pytest

from headrace.indexer.exchange import simulated


def test_a_process_that_was_stopped_goes_on_waiting(monkeypatch):
    """A stop of 1,000 s, as the clock shows it, takes one second of the limit."""
    jumps = iter([0.0, 1000.0])
    now = [0.0]

    def clock():
        now[0] += next(jumps, 0.0)
        return now[0]

    ended = threading.Event()
    thread = threading.Thread(target=lambda: ended.wait(10), daemon=True)
    thread.start()
    monkeypatch.setattr(simulated.time, "monotonic", clock)
    threading.Timer(1.2, ended.set).start()
    simulated._join([thread], 60.0)
    assert not thread.is_alive()


def test_a_rank_that_does_not_end_is_told_of(monkeypatch):
    monkeypatch.setattr(simulated, "ENDING_S", 0.2)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="a simulated rank did not end"):
        simulated.run_ranks(2, lambda c: time.sleep(5.0 if c.rank else 0.0), timeout_s=0.1)
    assert time.monotonic() - began < 4.0
