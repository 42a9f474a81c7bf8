"""Channels of a node: the same arrays through shared memory and through messages, the same counts, the same errors."""

from __future__ import annotations

import os
import threading
import time
import warnings

import numpy as np
import pytest

from headrace.indexer.exchange import shared_block
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.exchange.errors import RankLeftError, RankLostError, RankMismatchError, RankTimeoutError
from headrace.indexer.exchange.node_channel import NodeChannel
from headrace.indexer.exchange.shared_block import SharedBlock, SharedMemoryError
from headrace.indexer.exchange.simulated import run_ranks

linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")


def exchange(communicator: Communicator) -> tuple[list[list[float]], dict[str, list[int]]]:
    """Rank r sends (place + r) rows to each place of its node, from rooms and not; none where that is 0."""
    channel = communicator.node_channel("node_rows", 1, 2)
    members = communicator.node_members(2)
    got = []
    for step in range(6):
        sends, receives = {}, {}
        for place in range(2):
            rows = place + communicator.rank
            values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) + 100 * communicator.rank + step
            sends[place] = channel.room(place, values.shape) if step % 2 else values
            sends[place][...] = values
            receives[place] = np.zeros((channel.rank + members[place], 3), np.float32)
        channel.post(sends, receives, "rows").wait()
        got.append(receives[1 - channel.rank].reshape(-1).tolist())
    communicator.barrier()
    return got, {p: n for p, n in communicator.bytes_sent().items() if p == "node_rows"}


@linux
@pytest.mark.parametrize("seed", [None, 1])
def test_shared_memory_and_messages_give_the_same(seed):
    def work(communicator):
        result = exchange(communicator)
        return result, communicator.bytes_shared()

    shared = run_ranks(4, work, seed=seed)
    messages = run_ranks(4, work, seed=seed, shared_memory=False)
    assert [result for result, _ in shared] == [result for result, _ in messages]
    assert [apart for _, apart in shared] == [result[1] for result, _ in shared]
    assert all(apart == {} for _, apart in messages)
    assert shared[1][1]["node_rows"] == [6 * 1 * 3 * 4, 0, 0, 0]
    assert shared[2][1]["node_rows"] == [0, 0, 0, 6 * 3 * 3 * 4]


@linux
@pytest.mark.parametrize("wanted", [True, False])
def test_where_there_is_no_memory_messages_are_sent_with_one_warning(monkeypatch, wanted):
    """For a reason that is told; no warning where nobody asked for memory."""
    monkeypatch.delattr(shared_block.os, "memfd_create")

    def work(communicator):
        channels = [communicator.node_channel("node_rows", run, 2) for run in (1, 2)]
        assert not any(isinstance(channel, NodeChannel) for channel in channels)
        return exchange(communicator)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_ranks(2, work, shared_memory=wanted)
    said = [str(warning.message) for warning in caught if "shared memory" in str(warning.message)]
    assert len(said) == (2 if wanted else 0)  # one on each rank
    for text in said:
        assert text.startswith(
            "ranks 0 to 1 exchange through simulated, not through shared memory: rank 0: this system"
        )


@linux
def test_a_node_of_one_rank_shares_nothing():
    def work(communicator):
        return isinstance(communicator.node_channel("node_rows", 1, 1), NodeChannel)

    assert run_ranks(2, work) == [False, False]


@linux
def test_nodes_of_two_sizes():
    def work(communicator):
        for size in (2, 4):
            channel = communicator.node_channel("node_rows", size, size)
            receives = {p: np.zeros((1, 1), np.float32) for p in range(size)}
            channel.post({p: np.full((1, 1), communicator.rank, np.float32) for p in range(size)}, receives).wait()
            others = [r for r in communicator.node_members(size) if r != communicator.rank]
            assert sorted(float(a[0, 0]) for p, a in receives.items() if p != channel.rank) == others
        communicator.barrier()

    run_ranks(4, work)


@linux
def test_a_rank_that_does_not_come_is_named():
    def work(communicator):
        channel = communicator.node_channel("node_rows", 1, 2)
        if communicator.rank == 1:
            time.sleep(3.0)
            return
        with pytest.raises(RankTimeoutError, match="rank 0 waited 1 s for its rows of rank 1") as caught:
            channel.post({}, {1: np.zeros((1, 1), np.float32)}, "its rows").wait()
        assert caught.value.ranks == (1,)

    run_ranks(2, work, timeout_s=1.0)


@linux
def test_a_rank_that_ended_is_named():
    def work(communicator):
        channel = communicator.node_channel("node_rows", 1, 2)
        if communicator.rank == 1:
            return
        with pytest.raises(RankLostError, match=r"its rows of rank 1, but rank 1|lost rank 1") as caught:
            channel.post({}, {1: np.zeros((1, 1), np.float32)}, "its rows").wait()
        assert caught.value.ranks == (1,)

    run_ranks(2, work)


@linux
@pytest.mark.parametrize("failed", [False, True])
def test_who_closes_lets_the_others_see_its_memory_first(failed):
    """Unless it has failed: then nobody is waited for, and its memory may be gone when it is read."""
    begun, closed = threading.Event(), threading.Event()

    def work(communicator):
        channel = communicator.node_channel("node_rows", 1, 2)
        if communicator.rank == 0:
            channel.post({1: np.ones((5, 1), np.float32)}, {})
            if failed:
                communicator.end_all(ValueError("planned"))
            begun.set()
            communicator.close()
            closed.set()
            return
        got = np.zeros((5, 1), np.float32)
        assert (closed if failed else begun).wait(60)
        if failed:
            assert communicator._watch.left(0, 60)  # it has heard of it
        else:
            assert not closed.wait(0.5)
        posted = channel.post({}, {0: got}, "its rows")
        if failed:
            with pytest.raises(
                RankLeftError, match="its rows of rank 0, but rank 0 has failed with ValueError: planned"
            ):
                posted.wait()
        else:
            posted.wait()
            assert (got == 1).all()
            assert closed.wait(60)

    run_ranks(2, work)


@linux
def test_memory_that_is_gone_is_a_lost_rank(monkeypatch):
    """Where its rank could not say that it left, as after a kill."""

    def gone(handle):
        raise SharedMemoryError("headrace-1 of process 2 cannot be opened: No such file")

    def work(communicator):
        channel = communicator.node_channel("node_rows", 1, 2)
        communicator.barrier()
        monkeypatch.setattr(SharedBlock, "open", staticmethod(gone))
        peer = 1 - communicator.rank
        posted = channel.post({peer: np.ones(5, np.float32)}, {peer: np.empty(5, np.float32)}, "its rows")
        with pytest.raises(
            RankLostError, match=f"lost rank {peer} while waiting for its rows: .*, No such file"
        ) as caught:
            posted.wait()
        assert caught.value.ranks == (peer,)
        communicator._nodes.give_up()

    run_ranks(2, work, seed=3)


@linux
def test_a_message_of_another_size_is_another_message():
    def work(communicator):
        channel = communicator.node_channel("node_rows", 1, 2)
        peer = 1 - communicator.rank
        posted = channel.post({peer: np.ones(5, np.float32)}, {peer: np.empty(4, np.float32)}, "its rows")
        with pytest.raises(RankMismatchError, match=r"got another message than its rows: .*20 bytes .*16 expected"):
            posted.wait()
        communicator._nodes.give_up()

    run_ranks(2, work)
