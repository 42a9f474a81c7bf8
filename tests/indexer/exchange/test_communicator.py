"""Communicators: the same checks on every backend, on threads in turn and in any order, and under both launchers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import headrace
from headrace.indexer.exchange.errors import ExchangeClosedError, RankLeftError, RankTimeoutError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.exchange_kit import check_all, check_missing_rank
from tests.support.launch import mpirun, torchrun

PROGRAM = str(Path(__file__).resolve().parents[2] / "support" / "exchange_program.py")


def test_one_process_needs_no_launcher():
    with headrace.connect("none") as communicator:
        check_all(communicator)
        assert (communicator.rank, communicator.world_size, communicator.backend) == (0, 1, "none")
        assert sum(map(sum, communicator.bytes_sent().values())) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_that_are_threads(size):
    run_ranks(size, check_all)


@pytest.mark.parametrize("seed", range(10))
def test_ranks_that_take_turns(seed):
    run_ranks(3, lambda communicator: check_all(communicator, threads=False), seed=seed)


@pytest.mark.ranks
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_of_mpirun(ranks):
    done = mpirun(ranks, PROGRAM, "kit", *(["1000"] if ranks == 3 else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == ranks


@pytest.mark.ranks
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_torchrun(ranks):
    done = torchrun(ranks, PROGRAM, "kit", "5000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == ranks


@pytest.mark.ranks
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("launch", [mpirun, torchrun])
def test_a_rank_that_never_comes_is_named(launch):
    done = launch(3, PROGRAM, "missing")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 2


@pytest.mark.ranks
@pytest.mark.timeout(1000)
def test_messages_that_come_late_meet_no_freed_memory():
    """MPI ends behind the interpreter, and still writes what comes where it was expected."""
    done = mpirun(3, PROGRAM, "late")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 3


@pytest.mark.ranks
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("how", ["never", "failed"])
def test_no_thread_comes_back_from_gloo_while_the_interpreter_ends(how):
    """It would abort the process: `terminate called without an active exception`."""
    done = torchrun(3, PROGRAM, how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 3


def test_a_closed_communicator_has_no_channels():
    communicator = headrace.connect("none")
    communicator.close()
    with pytest.raises(ExchangeClosedError, match="closed the channel for rows of run 3"):
        communicator.channel("rows", 3)


def test_a_rank_that_never_comes_is_named_among_threads():
    def work(communicator):
        check_missing_rank(communicator, 2)

    run_ranks(3, work, timeout_s=2.0)


def test_a_rank_that_ended_is_named():
    def work(communicator):
        if communicator.rank == 1:
            return
        message = "rank 0 waits for its arrival of rank 1, but rank 1 has closed its communicator"
        with pytest.raises(RankLeftError, match=message) as caught:
            communicator.barrier()
        assert caught.value.ranks == (1,)

    run_ranks(2, work)


def test_a_deadlock_is_found_at_once():
    def work(communicator):
        peer = 1 - communicator.rank
        communicator.channel("rows").post({}, {peer: np.empty(1)}).wait()

    with pytest.raises(RankTimeoutError):
        run_ranks(2, work, seed=0, timeout_s=60.0)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, r"need mpi4py .*pip install 'headrace\[mpi\]'"),
        (SimpleNamespace(MPI=SimpleNamespace(Query_thread=lambda: 1, THREAD_MULTIPLE=3)), "no MPI_THREAD_MULTIPLE"),
    ],
)
def test_an_mpi_that_is_not_there_or_not_for_threads_is_refused(monkeypatch, module, message):
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    with pytest.raises(RuntimeError, match=message):
        headrace.connect("mpi")


def test_a_missing_runtime_is_explained(monkeypatch):
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("cannot load MPI library")  # what mpi4py raises without libmpi

    monkeypatch.setitem(sys.modules, "mpi4py", Broken())
    with pytest.raises(RuntimeError, match=r"an MPI runtime .cannot load MPI library.: pip install"):
        headrace.connect("mpi")


def test_gloo_needs_torch_distributed():
    with pytest.raises(RuntimeError, match=r"torch.distributed is not initialised: start the ranks with torchrun"):
        headrace.connect("gloo")


@pytest.mark.parametrize("bad", [0, -1, True, 2e6])
def test_a_timeout_is_seconds(bad):
    with pytest.raises(ValueError, match="timeout_s"):
        headrace.connect("none", timeout_s=bad)


def test_another_backend_is_refused():
    with pytest.raises(ValueError, match="backend='tcp' is none of"):
        headrace.connect("tcp")
