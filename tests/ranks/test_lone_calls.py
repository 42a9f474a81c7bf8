"""What one rank calls alone, or a rank that leaves: errors that say who waits for what, and what the others do."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import headrace
from headrace.indexer.exchange import watch
from headrace.indexer.exchange.errors import RankLeftError, RankStandstillError, RankTimeoutError
from headrace.indexer.exchange.simulated import SimulatedTransport, run_ranks
from tests.support.criteo_text import write_lines
from tests.support.launch import mpirun, torchrun
from tests.support.lone_calls_program import Run
from tests.support.rank_training import make_schema

PROGRAM = str(Path(__file__).resolve().parents[1] / "support" / "lone_calls_program.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("lone") / "train.txt"
    write_lines(path, 200, seed=3, ids=40)
    return str(path)


@pytest.mark.ranks
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("launch", "how"), [(mpirun, "close"), (torchrun, "end")])
def test_launched(data, launch, how, tmp_path):
    done = launch(2, PROGRAM, data, str(tmp_path), how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 2
    assert not list(tmp_path.iterdir())


def clips(run, batch):
    headrace.clip_grad_norm_(run.stage, (), 1.0)


def averages(run, batch):
    headrace.average_gradients(run.communicator, [torch.nn.Parameter(torch.zeros(2))], batch)


def evaluates(run, batch):
    with headrace.DataLoader(
        run.data, 4, schema=make_schema(), index=run.loader.index, train=False, communicator=run.communicator
    ) as evaluation:
        next(iter(evaluation))


@pytest.mark.parametrize(
    ("call", "waits_for"),
    [
        (clips, "the gradients of step 3 for clip_grad_norm_"),
        (averages, "average_gradients of step 3"),
        (evaluates, "the start of an epoch .*"),
    ],
)
def test_a_call_of_one_rank_alone(data, call, waits_for):
    """Rank 1 makes it between backward and step; messages of it are not taken for those of the others."""

    def work(communicator):
        run = Run(data, communicator)
        run.data = data
        run.steps(3)
        batch = next(run.batches)
        run.stage(batch).square().sum(dim=1).mean().backward()
        mine, theirs = (
            (waits_for, "the gradients of step 3") if communicator.rank == 1 else ("the gradients of step 3", waits_for)
        )
        step = run.stage.step if communicator.rank != 1 else lambda batch: call(run, batch)
        others = "rank 0" if communicator.rank == 1 else "rank 1"
        message = rf"waits for {mine} of rank.*(the last .* was stage\(batch\) of step 3).*; {others} "
        with pytest.raises(RankStandstillError, match=f"{message}(waits|gave up waiting) for {theirs}"):
            step(batch)
        time.sleep(1.0)  # the others may be a moment later, and are told of waits, not of leaving
        run.loader.close()

    run_ranks(2, work, timeout_s=60)


def exports(run, out):
    headrace.export_table(run.stage, run.loader.index, "C1", out)


def takes_the_state(run, out):
    run.stage.state_dict()


def begins_an_epoch(run, batch):
    iter(run.loader)


@pytest.mark.parametrize(("read", "others"), [(exports, evaluates), (takes_the_state, begins_an_epoch)])
def test_rows_that_one_rank_alone_reads(data, read, others, tmp_path, monkeypatch):
    """Gradients of the step before are put off until all ranks go on; the others are at their next start."""
    monkeypatch.setattr(watch, "LEFT_GRACE_S", 0.5)

    def work(communicator):
        run = Run(data, communicator)
        run.data = data
        run.steps(4)
        if communicator.rank == 0:
            read(run, tmp_path / "C1.parquet")
        else:
            others(run, None)

    with pytest.raises(RankStandstillError, match=r"rank . waits for .*; rank . .*neither can go on") as caught:
        run_ranks(2, work, timeout_s=60)
    told = str(caught.value)
    assert "the gradients of step 3 that were put off, before rows are read (all ranks call flush, lookup_rows," in told
    assert "the start of an epoch" in told
    assert not list(tmp_path.iterdir())


def test_a_batch_that_one_rank_does_not_pass_to_the_stage(data):
    """Its rows would be taken for those of another step, or have another size, at which gloo ends the process."""

    def work(communicator):
        run = Run(data, communicator)
        run.steps(2)
        if communicator.rank == 1:
            next(run.batches)
            with pytest.raises(RuntimeError, match="the batch of step 3, but that of step 2 was not passed"):
                run.steps(1)
        else:
            with pytest.raises(RankLeftError, match="the rows of step 2 of rank 1, but rank 1 has closed"):
                run.steps(2)
        run.loader.close()

    run_ranks(2, work, timeout_s=60)


def test_what_was_sent_before_a_rank_left_is_taken(monkeypatch):
    """It leaves with a message on its way that comes later than its farewell."""
    monkeypatch.setattr(watch, "LEFT_GRACE_S", 3.0)

    def work(communicator):
        channel = communicator.channel("rows")
        if communicator.rank == 1:
            communicator.close()
            time.sleep(1.5)
            world = communicator._transport.world
            world.send(np.arange(4, dtype=np.uint8), (1, 0, channel._lane._tag))
            time.sleep(4.5)  # not gone before the other has found out
            return None
        first, second = np.zeros(4, np.uint8), np.zeros(4, np.uint8)
        channel.post({}, {1: first}).wait()
        began = time.monotonic()
        with pytest.raises(RankLeftError) as caught:
            channel.post({}, {1: second}, "another").wait()
        assert 2.0 < time.monotonic() - began < 30.0
        assert str(caught.value).startswith(
            "rank 0 waits for another of rank 1, but rank 1 has closed its communicator"
        )
        return first.tolist()

    assert run_ranks(2, work)[0] == [0, 1, 2, 3]


def test_a_rank_that_works_on_alone_is_told_of():
    def work(communicator):
        communicator.activity.did("stage.step of step 7")
        if communicator.rank == 1:
            time.sleep(4.0)
            return
        channel = communicator.channel("rows")
        channel.timeout_s = 3.0
        with pytest.raises(RankTimeoutError) as caught:
            channel.post({}, {1: np.zeros(1)}, "rows").wait()
        assert "; rank 1 is in code of its own; the last it did was stage.step of step 7, " in str(caught.value)

    run_ranks(2, work)


def test_a_rank_that_failed_says_so():
    def work(communicator):
        with communicator:
            if communicator.rank == 1:
                raise OSError("no space left")
            communicator.barrier()

    with pytest.raises(OSError, match="no space left"):
        run_ranks(2, work)

    def other(communicator):
        if communicator.rank == 1:
            communicator.end_all(OSError("no space left"))
            return
        with pytest.raises(RankLeftError, match="but rank 1 has failed with OSError: no space left"):
            communicator.barrier()

    run_ranks(2, other)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (3, "has failed with SystemExit: 3"),
        ("no data", "has failed with SystemExit: no data"),
        (True, "has failed with SystemExit: True"),
        (0, "has closed its communicator"),
        (None, "has closed its communicator"),
    ],
)
def test_a_program_that_exits_with_an_error_has_failed(code, said, monkeypatch):
    ended = []
    monkeypatch.setattr(SimulatedTransport, "end_all", lambda transport: ended.append(transport.rank))

    def work(communicator):
        if communicator.rank == 1:
            with pytest.raises(SystemExit), communicator:
                sys.exit(code)
            return
        with pytest.raises(RankLeftError, match=f"but rank 1 {said}"):
            communicator.barrier()

    run_ranks(2, work)
    assert ended == [1] * said.startswith("has failed")
