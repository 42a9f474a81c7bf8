"""A lane over gloo, with a group that ends requests when it is told to."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from headrace.indexer.exchange.errors import ExchangeClosedError, RankLostError
from headrace.indexer.exchange.gloo_transport import _GlooLane


class Work:
    def __init__(self) -> None:
        self.ended, self.error = threading.Event(), None

    def end(self, error: str | None = None) -> None:
        self.error = error
        self.ended.set()

    def wait(self, timeout: object) -> None:
        assert self.ended.wait(30)
        if self.error is not None:
            raise RuntimeError(self.error)


class Group:
    """As torch's: `send` and `recv` of a list of tensors, which give something to wait for."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def send(self, tensors: list[object], peer: int, tag: int) -> Work:
        self.works.append(Work())
        return self.works[-1]

    recv = send


@pytest.fixture
def lane():
    lane = _GlooLane(Group(), 0, 0)
    yield lane
    for work in lane._group.works:
        work.end()
    lane.interrupt()
    lane.join(time.monotonic() + 30)
    assert lane.is_over


def word():
    return np.zeros(1, np.uint8)


def test_what_nobody_waits_for_does_not_pile_up(lane):
    for _ in range(20):
        lane.receive(word(), 1)
    awaited = lane.send(word(), 1)
    for work in lane._group.works:
        work.end()
    behind = lane.send(word(), 1)
    assert lane.wait([(1, awaited)], 30) == []
    assert lane._under_way == [behind]


def test_the_late_are_named_and_may_still_come(lane):
    here, late = lane.receive(word(), 1), lane.receive(word(), 2)
    lane._group.works[0].end()
    while lane.wait([(1, here), (2, late)], 0.05) != [2]:
        pass
    lane._group.works[1].end()
    assert lane.wait([(1, here), (2, late)], 30) == []


def test_a_lost_peer_is_named_at_once_whatever_the_others_do(lane):
    waiting = [(peer, lane.receive(word(), peer)) for peer in (1, 2, 2, 3)]
    lane._group.works[1].end("Connection closed by peer")
    with pytest.raises(RankLostError) as caught:
        lane.wait(waiting, 30)
    assert caught.value.ranks == (2,)


def test_a_closed_lane_begins_nothing_and_ends_what_was_begun(lane):
    begun = lane.receive(word(), 1)
    assert not lane._waiters
    lane.interrupt()
    with pytest.raises(ExchangeClosedError):
        lane.wait([(1, begun)], 30)
    with pytest.raises(ExchangeClosedError):
        lane.send(word(), 1)
    assert not lane.is_over
    lane._group.works[0].end()
    lane.join(time.monotonic() + 30)
    assert lane.is_over
