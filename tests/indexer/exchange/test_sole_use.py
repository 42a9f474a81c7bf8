"""Two threads in one channel: the second is refused, by what each is at, before it sends anything."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from headrace.indexer.exchange.agreement import agree
from headrace.indexer.exchange.simulated import run_ranks
from headrace.indexer.exchange.sole_use import SoleUse


def in_thread(function, name="other"):
    """What `function` raises in a thread of its own, or gives."""
    found = []

    def work():
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    thread.join(60)
    return found[0]


CALLS = {
    "agree": lambda channel: agree(channel, {"a": 1}, "the other call"),
    "post": lambda channel: channel.post({1: np.zeros(3)}, {}, "the other call"),
    "all_gather": lambda channel: channel.all_gather(np.zeros(3), "the other call"),
    "all_reduce": lambda channel: channel.all_reduce(np.zeros(3), "the other call"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("purpose", ["control", "dense"])
def test_a_second_thread_is_refused_before_it_sends(purpose, call):
    """It comes while the first waits for a rank that is late, and between two calls that belong together."""

    def work(communicator):
        channel = communicator.channel(purpose)
        if communicator.rank == 1:
            time.sleep(0.5)
            agree(channel, {"a": 1}, "the first call")
            return None
        refused, sent = [], []

        def other():
            time.sleep(0.2)
            sent.append(channel.traffic.sent.copy())
            refused.append(in_thread(lambda: CALLS[call](channel)))
            sent.append(channel.traffic.sent.copy())

        thread = threading.Thread(target=other)
        thread.start()
        agree(channel, {"a": 1}, "the first call")
        thread.join(60)
        assert (sent[0] == sent[1]).all()
        return refused[0]

    error = run_ranks(2, work)[0]
    assert isinstance(error, RuntimeError)
    assert str(error).startswith(
        "one loop at a time per communicator: on rank 0 thread 'other' comes to the other call "
    )
    assert f" is at the first call (channel {purpose!r}); nothing of it was sent" in str(error)


def test_what_was_posted_holds_a_channel_that_loops_share_until_it_is_waited_for():
    def work(communicator):
        channel, other = communicator.channel("dense"), 1 - communicator.rank
        for given_up in (False, True):
            came = np.zeros(2)
            posted = channel.post({other: np.ones(2)}, {other: came}, "a sum")
            refused = in_thread(lambda: channel.post({other: np.ones(1)}, {}, "another"))
            assert isinstance(refused, RuntimeError)
            assert "is at a sum" in str(refused)
            if not given_up:
                posted.wait()
                assert came.tolist() == [1.0, 1.0]
            del posted
            rows = in_thread(lambda: channel.post({}, {}, "a third"))
            assert not isinstance(rows, BaseException)

    run_ranks(2, work)


def test_channels_of_a_run_are_handed_over_with_what_is_under_way():
    """Early rows are sent a step ahead; the loop may go on in another thread."""

    def work(communicator):
        channel, other = communicator.channel("rows", communicator.new_run()), 1 - communicator.rank
        came = np.zeros(2)
        posted = channel.post({other: np.ones(2)}, {other: came}, "rows")
        again = np.zeros(2)
        assert in_thread(lambda: channel.post({other: np.ones(2)}, {other: again}, "rows").wait()) is None
        posted.wait()
        return came.tolist() + again.tolist()

    assert run_ranks(2, work) == [[1.0] * 4] * 2


def test_a_thread_may_come_again_and_what_one_that_ended_used_is_free():
    use = SoleUse(0, "control")
    with use("one"), use("two"):
        assert "is at one" in str(in_thread(lambda: use.begin("three")))
    assert in_thread(lambda: use.begin("four")) is None  # and it ends
    with use("five"):
        assert "is at five" in str(in_thread(lambda: use.begin("six")))
    assert in_thread(lambda: use.begin("seven")) is None
