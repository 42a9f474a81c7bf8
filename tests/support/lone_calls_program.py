"""Run by mpirun or torchrun: `DATA OUT close|end`: rank 1 alone calls save_run, later it leaves the loop before the
others, and closes its communicator or ends its program; exit code 0 if the errors of all are right."""

from __future__ import annotations

import itertools
import re
import sys
import time
from pathlib import Path

import pytest
import torch

import headrace
from headrace.indexer.exchange.errors import RankLeftError, RankStandstillError
from tests.support.rank_training import make_schema


class Run:
    """A loop over ranks that is made step by step."""

    def __init__(self, data: str, communicator: headrace.Communicator) -> None:
        schema = make_schema()
        self.communicator = communicator
        self.stage = headrace.EmbeddingStage(schema, num_threads=1, communicator=communicator)
        self.model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(self.model.weight, 0.5)
        torch.nn.init.zeros_(self.model.bias)
        self.loader = headrace.DataLoader(data, 4, schema=schema, communicator=communicator, window=3)
        self.batches = iter(self.loader)

    def steps(self, number: int) -> None:
        for batch in itertools.islice(self.batches, number):
            self.stage(batch).square().sum(dim=1).mean().backward()
            self.stage.step(batch)

    def save(self, path: Path) -> None:
        state = {"loader_state": self.loader.state_dict(), "index": self.loader.index, "stage": self.stage}
        headrace.save_run(path, **state, model=self.model, optimizer=None, step=3)


def save_alone(data: str, out: Path, ranks: headrace.Communicator) -> None:
    run = Run(data, ranks)
    run.steps(3)
    here, other = ranks.rank, 1 - ranks.rank
    saves = "save_run of rank 0", "the rows of step 3 of rank 1"
    mine, theirs = saves if here == 1 else saves[::-1]
    with pytest.raises(RankStandstillError) as caught:
        run.save(out / "saved") if here == 1 else run.steps(10)
    expected = (
        rf"rank {here} waits for {mine} \(the last it did was stage.step of step 2\); "
        rf"rank {other} (waits|gave up waiting) for {theirs}, since [0-9]+ s; "
        "the last it did was stage.step of step 2.*neither can go on"
    )
    assert re.match(expected, str(caught.value)), str(caught.value)
    run.loader.close()


def leave(data: str, ranks: headrace.Communicator, how: str) -> None:
    run = Run(data, ranks)
    run.steps(3)
    if ranks.rank == 1:
        return
    began = time.monotonic()
    with pytest.raises(RankLeftError) as caught:
        run.steps(10)
    took_s = time.monotonic() - began
    assert took_s < 60, took_s  # of 300: seconds, on a machine that is not busy
    left = "has closed its communicator" if how == "close" else "has ended its program"
    expected = rf"rank 0 waits for .* of rank 1, but rank 1 {left} \(the last it did was stage.step of step 2\): all "
    assert re.match(expected, str(caught.value)), str(caught.value)
    assert caught.value.ranks == (1,)
    run.loader.close()


if __name__ == "__main__":
    data, out, how = sys.argv[1:]
    with headrace.connect(timeout_s=300.0) as ranks:
        save_alone(data, Path(out), ranks)
    ranks = headrace.connect(timeout_s=300.0)
    leave(data, ranks, how)
    if ranks.rank == 0 or how == "close":
        ranks.close()
    print(f"rank {ranks.rank}: right", flush=True)
