"""Each rank saves and restores its own part, at one step, and what would lose rows is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace
from headrace.indexer.exchange.errors import RankMismatchError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "train.txt"
    write_lines(path, 120, seed=3, ids=40)
    return path


class Run:
    """A loader, a stage and a dense model on one rank, and their steps."""

    def __init__(self, data, communicator):
        schema = make_schema()
        self.loader = headrace.DataLoader(data, 4, schema=schema, communicator=communicator, window=3, timeout=60)
        self.stage = headrace.EmbeddingStage(schema, lr=0.1, num_threads=1, communicator=communicator)
        self.model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(self.model.weight, 0.5)
        torch.nn.init.zeros_(self.model.bias)

    def train(self, steps=None):
        for number, batch in enumerate(self.loader, start=1):
            self.stage(batch).square().sum(dim=1).mean().backward()
            self.stage.step(batch)
            if number == steps:
                return

    def save(self, path, step):
        index, state = self.loader.index, self.loader.state_dict()
        headrace.save_run(
            path, loader_state=state, index=index, stage=self.stage, model=self.model, optimizer=None, step=step
        )

    def restore(self, path):
        saved = headrace.load_run(path)
        saved.restore(index=self.loader.index, stage=self.stage, model=self.model)
        self.loader.load_state_dict(saved.loader_state)

    def rows(self):
        return {name: array.copy() for name, array in self.stage.state_arrays().items()}


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    """The folders of two ranks after 5 steps ("a") and after 7 ("b"), and their rows at the end of the epoch."""
    folder = tmp_path_factory.mktemp("saved")

    def work(communicator):
        run = Run(data, communicator)
        run.train(5)
        run.save(folder / f"a{communicator.rank}", 5)
        whole = Run(data, communicator)
        whole.train()
        run.save(folder / f"b{communicator.rank}", 7)
        return whole.rows()

    return folder, run_ranks(2, work)


def test_each_rank_goes_on_from_its_own_folder(data, saved):
    folder, expected = saved

    def work(communicator):
        run = Run(data, communicator)
        run.restore(folder / f"a{communicator.rank}")
        run.train()
        return run.rows()

    for got, wanted in zip(run_ranks(2, work), expected, strict=True):
        assert got.keys() == wanted.keys()
        assert all(np.array_equal(got[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (("a1", "a0"), "part differs: that of rank 1 of 2 on rank 0; that of rank 0 of 2 on rank 1"),
        (("a0", "a0"), "part differs: its own on rank 0; that of rank 0 of 2 on rank 1"),
        (("a0", "b1"), "step differs: 5 on rank 0; 7 on rank 1"),
    ],
)
def test_another_part_or_another_step_is_refused(data, saved, folders, message):
    folder, _ = saved

    def work(communicator):
        run = Run(data, communicator)
        with pytest.raises(RankMismatchError, match=message):
            run.restore(folder / folders[communicator.rank])
        assert len(run.loader.index) == 0

    run_ranks(2, work)


@pytest.mark.parametrize("world_size", [1, 3])
def test_another_number_of_ranks_is_refused(data, saved, world_size):
    folder, _ = saved

    def work(communicator):
        run = Run(data, communicator)
        with pytest.raises((headrace.CheckpointError, RankMismatchError), match=r"of 2"):
            run.restore(folder / f"a{min(communicator.rank, 1)}")

    run_ranks(world_size, work)
    alone = Run(data, None)
    with pytest.raises(headrace.CheckpointError, match="holds the rows of rank 0 of 2, and this is rank 0 of 1"):
        alone.restore(folder / "a0")


def test_one_folder_for_two_ranks_or_two_steps_are_refused_on_both(data, tmp_path):
    def work(communicator):
        run = Run(data, communicator)
        run.train(2)
        with pytest.raises(ValueError, match=r"ranks 0, 1 save to one folder, .*needs a folder of its own"):
            run.save(tmp_path / "run", 2)
        with pytest.raises(
            RankMismatchError,
            match="save_run is called differently on the ranks: step differs: 2 on rank 0; 3 on rank 1",
        ):
            run.save(tmp_path / str(communicator.rank), 2 + communicator.rank)

    run_ranks(2, work)
    assert not list(tmp_path.iterdir())


def test_gradients_are_not_averaged_beside_a_loader_of_one_process(data):
    def work(communicator):
        run = Run(data, None)
        batch = next(iter(run.loader))
        with pytest.raises(ValueError, match="give DataLoader and EmbeddingStage the communicator, too"):
            headrace.average_gradients(communicator, run.model.parameters(), batch)

    run_ranks(2, work)
