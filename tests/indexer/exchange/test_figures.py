"""Arrays of all ranks on all ranks; on each backend they are checked by `tests/support/exchange_kit.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace
from headrace.indexer.exchange.errors import RankLostError, RankMismatchError
from headrace.indexer.exchange.simulated import run_ranks


def test_one_process_gets_a_copy_of_its_own():
    mine = np.arange(6, dtype=np.float32).reshape(2, 3)
    with headrace.connect("none") as ranks:
        (found,) = ranks.all_gather(mine)
        assert not np.shares_memory(found, mine)
        assert (found == mine).all()
        assert sum(ranks.all_gather([2, 3])).tolist() == [2, 3]
        assert sum(ranks.bytes_sent()["figures"]) == 0


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([1.5, 2.0]),
        np.array([1.5, 2.0], ">f8"),
        np.array([1.5, 0.0, 2.0])[::2],
        np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]),
        np.broadcast_to(np.float32(7), (3, 2)),  # read only
        [True, False],
        np.int8(-1),
        2.5,
        [],
    ],
)
def test_what_is_taken(given):
    for found in run_ranks(2, lambda ranks: ranks.all_gather(given)):
        assert [part.tolist() for part in found] == [np.asarray(given).tolist()] * 2
        assert all(part.dtype.isnative and part.flags.c_contiguous and part.flags.writeable for part in found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("loss", "got its array as str of dtype <U4"),
        ([None], "got its array as list of dtype object"),
        (np.array(["2020-01-01"], "M8[D]"), "dtype datetime64"),
        (np.zeros(1, np.complex64), "dtype complex64"),
    ],
)
def test_what_is_no_number_is_refused_before_anything_is_sent(given, message):
    with headrace.connect("none") as ranks, pytest.raises(TypeError, match=message):
        ranks.all_gather(given)


@pytest.mark.parametrize(
    ("of_rank", "message"),
    [
        (
            lambda r: (np.zeros((2, 3 + (r == 1))), "x"),
            r"\(x\): shape differs: \(any, 3\) on ranks 0, 2; \(any, 4\) on rank 1",
        ),
        (
            lambda r: (np.zeros(1) if r else 0.0, "x"),
            r"\(x\): shape differs: a scalar's on rank 0; \(any\) on ranks 1, 2",
        ),
        (
            lambda r: (np.float64(0) if r < 2 else np.float32(0), "x"),
            r": dtype differs: float64 on ranks 0, 1; float32 on rank 2",
        ),
        (
            lambda r: (1.0, "the loss" if r else "the auc"),
            "different places: the auc on rank 0; the loss on ranks 1, 2",
        ),
    ],
)
def test_different_arrays_are_refused_on_all_ranks_which_go_on(of_rank, message):
    def work(ranks):
        with pytest.raises(RankMismatchError, match=f"{message}$"):
            ranks.all_gather(*of_rank(ranks.rank))
        return [int(part) for part in ranks.all_gather(ranks.rank)]

    assert run_ranks(3, work) == [[0, 1, 2]] * 3


def test_a_rank_that_ended_is_named():
    def work(ranks):
        if ranks.rank == 1:
            return
        with pytest.raises(RankLostError, match=r"waits for the loss of rank 1.* rank 1 has closed its communicator"):
            ranks.all_gather(0.5, "the loss")

    run_ranks(3, work)


def test_the_bytes_are_counted():
    def work(ranks):
        ranks.all_gather(np.zeros(1000 * ranks.rank))
        return ranks.bytes_sent()["figures"]

    sent = run_ranks(2, work)
    described = sent[0][1]
    assert 0 < described < 200
    assert sent == [[0, described], [described + 8000, 0]]
