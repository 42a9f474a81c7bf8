"""Outboxes and inboxes of a node: every message arrives whole, in any order of writing and reading; memory is used
again, and what is forged is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.indexer.exchange import node_memory, shared_block
from headrace.indexer.exchange.node_memory import Inbox, Outbox, share
from headrace.indexer.exchange.shared_block import SharedMemoryError
from headrace.indexer.exchange.simulated import run_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")


@pytest.fixture
def pair():
    return Outbox("headrace-test"), Inbox(os.getpid(), "headrace-test")


def send(outbox: Outbox, values: np.ndarray, *, copied: bool = False) -> np.ndarray:
    if copied:
        return outbox.publish(values)
    room = outbox.room(len(values))
    room[...] = values
    return outbox.publish(room)


def receive(inbox: Inbox, bell: np.ndarray, nbytes: int) -> np.ndarray:
    into = np.empty(nbytes, np.uint8)
    inbox.take(bell, into)
    return into


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["send", "copy", "take"]), st.integers(1, 300_000)), max_size=40))
def test_any_order_of_sending_and_taking(moves):
    outbox, inbox = Outbox("headrace-test"), Inbox(os.getpid(), "headrace-test")
    under_way, most = [], 0
    for number, (what, nbytes) in enumerate(moves):
        if what == "take":
            if under_way:
                bell, expected = under_way.pop(0)
                assert (receive(inbox, bell, len(expected)) == expected).all()
        else:
            values = np.random.default_rng(number).integers(0, 256, nbytes, np.uint8)
            under_way.append((send(outbox, values, copied=what == "copy"), values))
        most = max(most, len(under_way))
        assert outbox.num_blocks <= max(most, 1)
    for bell, expected in under_way:
        assert (receive(inbox, bell, len(expected)) == expected).all()
    assert not outbox.is_unseen


def test_memory_is_used_again(pair):
    outbox, inbox = pair
    before = len(os.listdir("/proc/self/fd"))
    for k in range(50):
        values = np.full(100_000 + 100 * k, k, np.uint8)
        first, second = send(outbox, values), send(outbox, values + 1)
        assert (receive(inbox, first, len(values)) == k).all()
        assert (receive(inbox, second, len(values)) == k + 1).all()
    assert outbox.num_blocks == 2
    assert len(os.listdir("/proc/self/fd")) <= before + 6  # each side two blocks, of which the mapping holds another


def test_a_block_that_is_too_small_makes_way(pair):
    outbox, inbox = pair
    for nbytes in (1, 70_000, 10_000_000, 20_000_000):
        assert (receive(inbox, send(outbox, np.full(nbytes, 9, np.uint8)), nbytes) == 9).all()
    assert outbox.num_blocks == len(inbox._blocks) == 1


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (0, -1, "number of a block is -1"),
        (0, 1 << 40, "number of a block"),
        (1, 5, "cannot be opened|not headrace-test-5"),
        (2, 10_000, "cannot be opened"),
        (3, 99, "size of a block is 99"),
        (3, 1 << 62, "size of a block"),
        (3, 1 << 30, "bytes and seals"),
        (4, 2, "message 1 lies where message 2 was announced"),
        (5, 101, "a message of 101 bytes in shared memory, 100 expected"),
    ],
)
def test_forged_bells_are_refused(pair, word, value, message):
    outbox, inbox = pair
    bell = send(outbox, np.ones(100, np.uint8))
    bell[word] = value
    with pytest.raises((ValueError, RuntimeError, SharedMemoryError), match=message):
        inbox.take(bell, np.empty(100, np.uint8))


def test_who_ends_waits_until_it_was_seen(pair):
    outbox, inbox = pair
    memory = node_memory.NodeMemory("a", [os.getpid()], ["a"])
    memory.outboxes = [outbox]
    assert memory.wait_until_seen(0.0)
    outbox.room(10)
    assert memory.wait_until_seen(0.0)  # nobody was told of it
    bell = send(outbox, np.ones(10, np.uint8))
    assert not memory.wait_until_seen(0.01)
    receive(inbox, bell, 10)
    assert memory.wait_until_seen(0.0)
    send(outbox, np.ones(10, np.uint8))
    assert memory.wait_until_seen(0.0)  # it holds the block


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_agree_on_memory(size):
    def work(communicator):
        memory, why = share(communicator.channel("node_memory"))
        assert not why
        to, sender = (communicator.rank + 1) % size, (communicator.rank - 1) % size
        bell = send(memory.outboxes[to], np.full(10, communicator.rank, np.uint8))
        rung = np.empty_like(bell)
        communicator.channel("rows").all_to_all(
            [bell] * size, [rung if r == sender else bell.copy() for r in range(size)]
        )
        if size > 1:
            assert (receive(memory.inboxes[sender], rung, 10) == sender).all()
        communicator.barrier()

    run_ranks(size, work)


def test_no_rank_has_memory_where_one_refuses():
    def work(communicator):
        return share(communicator.channel("node_memory"), refused="not today" if communicator.rank == 1 else None)

    assert run_ranks(3, work) == [(None, "rank 1: not today")] * 3


def test_ranks_that_do_not_see_each_other_have_none(monkeypatch):
    """As on two hosts, or in two containers: there is another process of that number, or none."""
    monkeypatch.setattr(node_memory.os, "getpid", lambda: 1)
    monkeypatch.setattr(shared_block.os, "getpid", lambda: 1)
    results = run_ranks(2, lambda communicator: share(communicator.channel("node_memory")))
    assert results[0] == results[1]
    memory, why = results[0]
    assert memory is None
    assert "rank 0: " in why
    assert "/proc/1/fd" in why or "of process 1 cannot be opened" in why
