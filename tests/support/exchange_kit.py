"""What every communicator must do, whatever its backend: run by all ranks at once."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType

import numpy as np
import pytest

from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.exchange.errors import ExchangeClosedError, RankMismatchError, RankTimeoutError, rank_names


def check_all(communicator: Communicator, *, threads: bool = True) -> None:
    """Each check of this file; `threads` False leaves out what needs two threads a rank."""
    check_all_to_all(communicator)
    check_gathers(communicator)
    check_all_reduce(communicator)
    check_arrays_of_all_ranks(communicator)
    check_runs_do_not_mix(communicator)
    check_order_within_a_channel(communicator)
    if threads:
        check_two_threads(communicator)
        check_close_ends_a_wait(communicator)
    communicator.barrier()  # nobody leaves while another one waits


def check_all_to_all(communicator: Communicator) -> None:
    """Rank r sends 3 r + s numbers to s, none at all where that is 0; bytes are counted to the byte."""
    rank, size = communicator.rank, communicator.world_size
    channel = communicator.channel("rows")
    before = channel.traffic.sent.copy(), channel.traffic.received.copy()
    sends = [np.full(3 * rank + to, 10.0 * rank + to, np.float32) for to in range(size)]
    receives = [np.zeros(3 * sender + rank, np.float32) for sender in range(size)]
    channel.all_to_all(sends, receives)
    for sender, got in enumerate(receives):
        assert got.tolist() == [10.0 * sender + rank] * (3 * sender + rank)
    sent = [0 if to == rank else 4 * (3 * rank + to) for to in range(size)]
    got_bytes = [0 if sender == rank else 4 * (3 * sender + rank) for sender in range(size)]
    assert (channel.traffic.sent - before[0]).tolist() == sent
    assert (channel.traffic.received - before[1]).tolist() == got_bytes


def check_gathers(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.world_size
    channel = communicator.channel("control")
    rows = channel.all_gather(np.array([rank, 7], np.int64))
    assert rows.tolist() == [[r, 7] for r in range(size)]
    assert channel.all_gather_bytes(b"x" * rank) == [b"x" * r for r in range(size)]
    with pytest.raises(ValueError, match=f"rank {size - 1} announces 9 bytes; a message has at most 8"):  # P28
        channel.all_gather_bytes(b"y" * (9 if rank == size - 1 else 0), limit=8)
    communicator.barrier()


def check_all_reduce(communicator: Communicator) -> None:
    """In the order of the ranks, the same bits everywhere, also for arrays shorter than the number of ranks."""
    rank, size = communicator.rank, communicator.world_size
    channel = communicator.channel("dense")
    for length in (0, 1, 5, 1000):
        parts = [np.random.default_rng([r, length]).standard_normal(length).astype(np.float32) for r in range(size)]
        expected = parts[0].copy()
        for part in parts[1:]:
            expected += part
        total = channel.all_reduce(parts[rank])
        assert total.tobytes() == expected.tobytes()


def check_arrays_of_all_ranks(communicator: Communicator) -> None:
    """Rank r has r rows: all ranks get all, in the order of ranks, of each dtype; differing ones are refused on all."""
    rank, size = communicator.rank, communicator.world_size
    for dtype in (np.float32, np.float64, np.int64, np.uint8, np.bool_, np.float16):
        mine = (np.arange(2 * rank).reshape(rank, 2) + rank).astype(dtype)
        found = communicator.all_gather(mine, "rows")
        assert [part.dtype for part in found] == [np.dtype(dtype)] * size
        expected = [(np.arange(2 * r).reshape(r, 2) + r).astype(dtype) for r in range(size)]
        assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    parts = [np.random.default_rng(r).standard_normal(7).astype(np.float32) for r in range(size)]
    total = sum(communicator.all_gather(parts[rank]))
    assert isinstance(total, np.ndarray)
    assert total.tobytes() == sum(parts[1:], start=parts[0]).tobytes()
    assert float(sum(communicator.all_gather(0.5 + rank))) == sum(0.5 + r for r in range(size))
    if size > 1:
        others = rank_names(range(1, size))
        with pytest.raises(RankMismatchError, match=f"dtype differs: int64 on rank 0; float64 on {others}$"):
            communicator.all_gather(np.zeros(3, np.float64 if rank else np.int64))


def check_runs_do_not_mix(communicator: Communicator) -> None:
    """A message of a run that was broken off is not taken for one of the next."""
    rank, size = communicator.rank, communicator.world_size
    first, second = communicator.new_run(), communicator.new_run()
    abandoned = communicator.channel("requests", first)
    to, sender = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        abandoned.post({to: np.array([1.0])}, {})  # nobody receives it
    silent = communicator.channel("replies", first)
    communicator.close_run(first)
    if size > 1:
        with pytest.raises(ExchangeClosedError):
            silent.post({}, {sender: np.empty(1)}).wait()
    for purpose in ("replies", "steps"):  # begun before the run was closed, and not yet
        with pytest.raises(ExchangeClosedError, match=f"closed the channel for {purpose} of run {first}"):
            communicator.channel(purpose, first)
    channel = communicator.channel("requests", second)
    got = np.zeros(1)
    if size > 1:
        channel.swap(np.array([2.0]), to, got, sender)
        assert got.tolist() == [2.0]


def check_order_within_a_channel(communicator: Communicator) -> None:
    """Messages between two ranks come in the order in which they were sent, several under way at once, in chunks."""
    rank, size = communicator.rank, communicator.world_size
    channel = communicator.channel("stream 1")
    to, sender = (rank + 1) % size, (rank - 1) % size
    if size == 1:
        return
    sent = [np.arange(50_000, dtype=np.int64) + k for k in range(4)]
    got = [np.zeros(50_000, np.int64) for _ in sent]
    posted = [channel.post({to: a}, {sender: b}) for a, b in zip(sent, got, strict=True)]
    for one in reversed(posted):
        one.wait()
    for a, b in zip(sent, got, strict=True):
        assert (a == b).all()


def check_two_threads(communicator: Communicator) -> None:
    """A loader's thread and the trainer's talk to other ranks side by side."""
    errors = []

    def work(purpose: str) -> None:
        try:
            channel = communicator.channel(purpose)
            for k in range(30):
                rows = channel.all_gather(np.array([communicator.rank * 1000 + k]))
                assert rows[:, 0].tolist() == [r * 1000 + k for r in range(communicator.world_size)]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"stream {2 + s}",)) for s in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def check_close_ends_a_wait(communicator: Communicator) -> None:
    """A wait for a rank that sends nothing ends when this rank closes the run, from another thread."""
    if communicator.world_size == 1:
        return
    run = communicator.new_run()
    channel = communicator.channel("replies", run)
    timer = threading.Timer(0.2, communicator.close_run, (run,))
    timer.start()
    started = time.monotonic()
    with pytest.raises(ExchangeClosedError):
        channel.post({}, {(communicator.rank + 1) % communicator.world_size: np.empty(1)}).wait()
    assert time.monotonic() - started < min(60.0, communicator.timeout_s)
    timer.join()


def check_missing_rank(communicator: Communicator, missing: int) -> None:
    """All but `missing` wait for it, and say so; for communicators with a short timeout."""
    communicator.channel("control").timeout_s = communicator.timeout_s
    if communicator.rank == missing:
        time.sleep(2 * communicator.timeout_s + 1.0)
        return
    with pytest.raises(RankTimeoutError, match=f"rank {communicator.rank} waited .* for its arrival of rank") as caught:
        communicator.barrier()
    assert caught.value.ranks == (missing,)
    communicator.channel("figures").timeout_s = 0.5
    with pytest.raises(RankTimeoutError, match=r"waited 0\.5 s for the loss of rank") as caught:
        communicator.all_gather(0.5, "the loss")
    assert caught.value.ranks == (missing,)


def leave_messages_under_way(communicator: Communicator) -> None:
    """Rank 0 ends while messages of many sizes, which it expects, lie before its door."""
    sizes = [1 << k for k in range(5, 22)] * 4
    channel = communicator.channel("rows", communicator.new_run())
    if communicator.rank == 0:
        for size in sizes:
            channel.post({}, {peer: np.empty(size, np.uint8) for peer in range(1, communicator.world_size)})
    communicator.barrier()
    if communicator.rank == 0:
        time.sleep(1.0)
        return
    for size in sizes:
        channel.post({0: np.full(size, 255, np.uint8)}, {})


def expect_what_never_comes(communicator: Communicator, *, failed: bool) -> None:
    """Rank 0 leaves while it expects a message, and its interpreter takes 6 s to end; the others end in between."""
    channel = communicator.channel("rows", communicator.new_run())
    if communicator.rank > 0:
        communicator.barrier()
        time.sleep(0.5 if failed else 8.0)
        return
    if communicator.backend == "gloo":
        communicator._transport._close_timeout_s = 2.0  # the others close after that
    sys.modules["lingering"] = Lingering("lingering")
    posted = channel.post({}, {peer: np.empty(100, np.uint8) for peer in range(1, communicator.world_size)})
    communicator.barrier()
    if failed:
        communicator.end_all(ValueError("planned"))
    communicator.close()
    with pytest.raises(ExchangeClosedError):
        posted.wait()


class Lingering(ModuleType):
    """A module that takes its time when the interpreter takes modules down, while no thread may run any more."""

    sleep = staticmethod(time.sleep)

    def __del__(self) -> None:
        self.sleep(6.0)
