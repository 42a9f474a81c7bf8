"""The index over ranks: who owns what, who talks to whom, and, under mpirun, one location a key on all ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.indexer._dit import mix64
from headrace.indexer.bench_exchange import KEY, check_count
from headrace.indexer.bench_ranks import Owner
from headrace.indexer.exchange.channel import turns
from headrace.indexer.exchange.communicator import connect
from headrace.indexer.exchange.mpi_transport import launched_ranks
from headrace.indexer.exchange.routing import owners_of
from headrace.indexer.indexed import IndexTable, unpack_location
from tests.support.launch import mpirun

TABLES = (IndexTable(1, 0), IndexTable(2, 0))


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("ring", [True, False])
def test_every_message_has_one_sender_and_one_receiver(size, ring):
    sent = {(rank, to) for rank in range(size) for to, _ in turns(rank, size, ring=ring)}
    received = {(sender, rank) for rank in range(size) for _, sender in turns(rank, size, ring=ring)}
    assert sent == received == {(a, b) for a in range(size) for b in range(size) if a != b}


def test_around_the_ring_no_two_ranks_visit_one_peer_in_a_turn():
    assert turns(3, 4, ring=True) == [(0, 2), (1, 1), (2, 0)]
    for turn in zip(*(turns(rank, 4, ring=True) for rank in range(4)), strict=True):
        assert sorted(to for to, _ in turn) == [0, 1, 2, 3]
    assert turns(3, 4, ring=False) == [(0, 0), (1, 1), (2, 2)]


def test_owners_are_runs_of_route_buckets():
    buckets = np.array([0, 21845, 21846, 43690, 43691, 65535], np.uint64) << np.uint64(48)
    assert owners_of(buckets, 3).tolist() == [0, 0, 1, 1, 2, 2]
    shares = np.bincount(owners_of(np.arange(65536, dtype=np.uint64) << np.uint64(48), 7))
    assert sorted(shares.tolist()) == [9362] * 5 + [9363] * 2
    assert owners_of(buckets, 1).tolist() == [0] * 6


@pytest.mark.parametrize("count", [-1, 11, 2**62])
def test_an_announced_number_is_checked(count):
    with pytest.raises(ValueError, match=f"rank 4 announces {count} keys; a batch has at most 10"):
        check_count(count, 10, 4)
    assert check_count(10, 10, 4) == 10


def test_an_owner_holds_its_residents_and_answers_in_the_order_of_each_rank():
    ids = np.arange(100, dtype=np.uint32)
    owner = Owner(TABLES, [ids, ids[:0]], rank=2, size=3, num_threads=1)
    mine = ids[owners_of(mix64(1, False, ids.astype(np.uint64)), 3) == 2]
    assert len(owner.index) == len(mine) > 10
    first = np.array([(mine[3], 0), (mine[1], 0), (7, 2), (0, 3)], KEY)  # the last one is table 1's missing value
    second = np.array([(0, 3), (0, 2), (7, 2)], KEY)
    here, empty, there = owner.locations([first, first[:0], second])
    assert len(empty) == 0
    assert len(owner.index) == len(mine) + 3
    assert (there[0], there[2]) == (here[3], here[2])
    assert len({*here.tolist(), *there.tolist()}) == 5
    assert {unpack_location(location)[1] for location in here.tolist()} == {2}
    assert owner.locations([second[::-1], first])[0].tolist() == there[::-1].tolist()
    with pytest.raises(ValueError, match="table of column 0 is 9"):
        owner.locations([np.array([(1, 18)], KEY)])
    owner.index.close()


def test_the_launcher_is_found_by_its_environment(monkeypatch):
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launched_ranks() == 1
    monkeypatch.setenv("PMI_SIZE", "4")
    assert launched_ranks() == 4


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
        connect("mpi")
    result = CliRunner().invoke(main, ["bench", "index", "--ranks"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


PROGRAM = str(Path(__file__).resolve().parents[1] / "support" / "ranks_program.py")


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_every_key_has_one_location_on_all_ranks(ranks):
    result = mpirun(ranks, PROGRAM, "locations")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("absent", "RankTimeoutError: rank 0 waited 0.5 s for its figures of rank 1"),
        pytest.param(
            "other_options", "ValueError: the ranks were started with different options", marks=pytest.mark.long
        ),
        ("too_many", "ValueError: rank 1 announces 11 keys; a batch has at most 10"),
    ],
)
def test_ranks_that_do_not_fit_end_with_the_reason(what, message):
    result = mpirun(2, PROGRAM, what)
    assert result.returncode == 1, result.stdout + result.stderr
    assert message in result.stderr + result.stdout


SMALL = ("--preset", "criteo-kaggle", "--rows", "2e4", "--batch-size", "256", "--samples", "1024", "--rounds", "2")


def test_the_command_measures_the_ranks_of_a_launcher():
    command = ["-m", "headrace", "bench", "index", *SMALL, "--request-threads", "2", "--parser", "--json", "-"]
    result = mpirun(2, *command)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)  # one rank writes
    assert (report["ranks"], report["request_threads"], report["samples"]) == (2, 2, 2048)
    assert set(report["samples_per_s"]) == {"ring", "no_ring"}
    assert len(report["samples_per_s_by_rank"]["ring"]) == 2
    assert 0.4 < report["keys_here_share"] < 0.6
    assert report["keys_here_share"] + report["keys_elsewhere_share"] == pytest.approx(1)
    assert 26 * 0.1 * 10 < report["bytes_sent_per_sample"] < 26 * 20
    assert min(report["rows_parsed_per_s_by_rank"]) > 0
    assert 20_000 <= report["rows"] == sum(report["rows_by_rank"]) < 40_000


@pytest.mark.long
def test_an_error_of_the_ranks_ends_the_command():
    result = mpirun(2, "-m", "headrace", "bench", "index", *SMALL, "--rows", "1e12", "--ring")
    assert result.returncode != 0
    assert "ValueError: rows=1,000,000,000,000, but the preset has only" in result.stderr
