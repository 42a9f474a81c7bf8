"""Options that change on one rank alone: compared at every K-th step, before anything is updated, with R or without."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from headrace.indexer.exchange.errors import RankMismatchError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema, rows_by_key


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "train.txt"
    write_lines(path, 60, seed=3, ids=40)
    return path


def set_lr(stage):
    stage.lr = 5.0


def set_group(name, value):
    def change(stage):
        stage.optimizer().param_groups[1][name] = value

    return change


def forget_steps(stage):
    stage.optimizer().num_steps = 0


@pytest.mark.parametrize(
    ("change", "hot_rows", "message"),
    [
        (set_lr, 0, r"lr of C1, C3, C5 and 23 more \(optimizer\) differs: 0.05 on ranks 0, 2; 5.0 on rank 1$"),
        (set_lr, 20, r"lr of C1, C3, C5 and 23 more \(optimizer\) differs: 0.05 on ranks 0, 2; 5.0 on rank 1$"),
        (
            set_group("eps", 0.5),
            0,
            r"eps of C2, C4, C6 and 10 more \(optimizer\) differs: 1e-08 on ranks 0, 2; 0.5 on rank 1$",
        ),
        (set_group("weight_decay", 0.5), 0, r"weight_decay of C2, .* differs: 0.0 on ranks 0, 2; 0.5 on rank 1$"),
        (set_group("betas", (0.5, 0.999)), 0, r"betas of C2, .* 0.9, 0.999 on ranks 0, 2; 0.5, 0.999 on rank 1$"),
        (forget_steps, 0, r"number of steps made differs: 3 on ranks 0, 2; 0 on rank 1$"),
    ],
)
def test_options_that_differ(data, change, hot_rows, message):
    def work(communicator):
        schema = make_schema("adam", two_layouts=True)
        stage = headrace.EmbeddingStage(schema, lr=0.05, communicator=communicator, check_replicas_every=2)
        options = {"schema": schema, "communicator": communicator, "window": 2, "timeout": 60, "hot_every": 2}
        with headrace.DataLoader(data, 4, hot_rows=hot_rows, **options) as loader:
            batches = iter(loader)
            for step in range(4):
                batch = next(batches)
                if step == 3 and communicator.rank == 1:
                    change(stage)
                stage(batch).square().sum(1).mean().backward()
                if step == 3:
                    with pytest.raises(RankMismatchError, match=rf"^step 3 is made with other options .*: {message}"):
                        stage.step(batch)
                    before = stage.num_steps
                    if "lr" in message and communicator.rank == 1:
                        stage.lr = 0.05
                    if "lr" in message:  # nothing was sent or changed
                        stage.step(batch)
                        assert stage.num_steps == before + 1 == 4
                else:
                    stage.step(batch)

    run_ranks(3, work)


def test_options_that_change_alike_and_come_as_numbers_of_any_kind(data):
    """A schedule on all ranks; float32 on one, float on the others. Without R nothing but the digest is added."""

    def work(communicator, check_every):
        schema = make_schema()
        stage = headrace.EmbeddingStage(schema, communicator=communicator, check_replicas_every=check_every)
        options = {"schema": schema, "communicator": communicator, "window": 2, "timeout": 60}
        with headrace.DataLoader(data, 4, **options) as loader:
            for step, batch in enumerate(loader):
                lr = 0.5 ** (step + 1)
                stage.optimizer().param_groups[0]["lr"] = np.float32(lr) if communicator.rank == 0 else lr
                stage(batch).square().sum(1).mean().backward()
                stage.step(batch)
            rows = rows_by_key(schema, loader.index, stage)
        return rows, sum(communicator.bytes_sent().get("hot", [0]))

    plain = run_ranks(2, lambda communicator: work(communicator, 0))
    checked = run_ranks(2, lambda communicator: work(communicator, 1))
    for (rows, sent), (expected, before) in zip(checked, plain, strict=True):
        assert before == 0
        assert sent == 16 * 8  # of eight steps, to one other rank
        assert rows.keys() == expected.keys()
        assert all((rows[key] == expected[key]).all() for key in rows)
