"""Evaluation in the middle of training over ranks, and states that serve another number of ranks."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

import headrace
from headrace.indexer.exchange.simulated import run_ranks
from headrace.ingest.engine.conformance import check_node
from headrace.ingest.nodes.batch_share import BatchShare
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema

ROWS = 200


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    write_lines(folder / "train.txt", ROWS, seed=3, ids=40)
    write_lines(folder / "held_out.txt", 50, seed=4, ids=60)
    return folder


def outputs(data, communicator, batch_size, **options):
    """What the stage gives for the held-out rows after each 5 steps, this rank's share of each batch."""
    schema = make_schema()
    stage = headrace.EmbeddingStage(schema, lr=0.01, eps=1e-4, num_threads=1, communicator=communicator)
    options = {"window": 4, "timeout": 60, "schema": schema, "communicator": communicator, **options}
    found = []
    with headrace.DataLoader(data / "train.txt", batch_size, **options) as loader:
        held_out = headrace.DataLoader(
            data / "held_out.txt", batch_size, schema=schema, communicator=communicator, index=loader.index, train=False
        )
        for step, batch in enumerate(loader):
            (stage(batch).square().sum(dim=1).mean()).backward()
            stage.step(batch)
            if step % 5 == 4:
                stage.eval()
                rows = len(loader.index)
                found.append([stage(one).detach().numpy() for one in held_out])
                assert len(loader.index) == rows
                stage.train()
    return found


@pytest.mark.parametrize("options", [{}, {"hot_rows": 50, "hot_every": 3}])
def test_evaluation_reads_the_newest_rows_and_inserts_none(data, options):
    expected = outputs(data, None, 12)
    parts = run_ranks(3, lambda c: outputs(data, c, 4, **options))
    for k, whole in enumerate(expected):
        for b, batch in enumerate(whole):
            got = np.concatenate([part[k][b] for part in parts])
            np.testing.assert_allclose(got, batch, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kept", "node_size"), [(True, 1), (False, 2)])
def test_channels_do_not_pile_up_with_evaluations(data, kept, node_size):
    def work(communicator):
        schema = make_schema()
        stage = headrace.EmbeddingStage(schema, lr=0.01, num_threads=1, communicator=communicator)
        options = {"schema": schema, "communicator": communicator, "window": 2, "timeout": 60, "node_size": node_size}
        channels = []
        with headrace.DataLoader(data / "train.txt", 2, **options) as loader:

            def held_out():
                return headrace.DataLoader(data / "held_out.txt", 25, index=loader.index, train=False, **options)

            one = held_out()
            for batch in loader:  # 50 steps
                stage(batch).sum().backward()
                stage.step(batch)
                stage.eval()
                rows = [stage(other).detach() for other in (one if kept else held_out())]
                assert len(rows) == 1
                stage.train()
                channels.append(len(communicator._channels))
        return channels

    for channels in run_ranks(2, work):
        assert len(channels) == 50
        assert max(channels[2:]) <= channels[2], channels


def test_two_evaluations_side_by_side(data):
    def work(communicator):
        schema = make_schema()
        stage = headrace.EmbeddingStage(schema, lr=0.01, num_threads=1, communicator=communicator)
        options = {"schema": schema, "communicator": communicator, "window": 2, "timeout": 60}
        with headrace.DataLoader(data / "train.txt", 10, **options) as loader:
            for batch in loader:
                stage(batch).sum().backward()
                stage.step(batch)
            stage.eval()
            pair = [
                headrace.DataLoader(data / "held_out.txt", 5, index=loader.index, train=False, **options)
                for _ in range(2)
            ]
            both = [(stage(a).detach().numpy(), stage(b).detach().numpy()) for a, b in zip(*pair, strict=True)]
        assert all((a == b).all() for a, b in both)
        return len(both)

    assert run_ranks(2, work) == [5, 5]


def places(batch):
    return batch.source.arrays()[1].tolist()


def read(data, communicator, batch_size, *, state=None, steps=1000):
    options = {"schema": make_schema(), "window": 2, "timeout": 60, "shuffle": True, "seed": 5}
    with headrace.DataLoader(
        data / "train.txt", batch_size, communicator=communicator, shuffle_window_rows=64, **options
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        rows = []
        for batch in loader:
            rows.append(places(batch))
            if len(rows) == steps:
                break
        return rows, loader.state_dict()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_global_order_does_not_depend_on_the_number_of_ranks(data, size):  # L27
    whole, _ = read(data, None, 12)
    parts = run_ranks(size, lambda c: read(data, c, 12 // size)[0])
    assert [list(chain(*rows)) for rows in zip(*parts, strict=True)] == whole


def test_a_state_serves_another_number_of_ranks(data):  # L27, L28
    whole, _ = read(data, None, 12)
    states = [state for _, state in run_ranks(3, lambda c: read(data, c, 4, steps=5))]
    assert states[0] == states[1] == states[2]
    rest = run_ranks(2, lambda c: read(data, c, 6, state=states[0])[0])
    assert [list(chain(*rows)) for rows in zip(*rest, strict=True)] == whole[5:]


def test_a_share_is_a_node(data):
    schema = make_schema()
    blocks = list(headrace.ReadRows(headrace.CriteoFiles(data / "held_out.txt", schema, block_bytes=2000)))

    def share(rank):
        return BatchShare(blocks, 6, rank=rank, world_size=3)

    def rows(block):
        return block.source.arrays()[1].tolist()

    assert [rows(block) for block in share(1)] == [list(range(6, 12)), list(range(24, 30)), list(range(40, 45))]
    check_node(lambda: headrace.ParallelMap(share(2), rows, num_workers=0), expected=[rows(b) for b in share(2)])
    dropped = BatchShare(blocks, 6, rank=1, world_size=3, drop_last=True)
    assert [rows(block) for block in dropped] == [list(range(6, 12)), list(range(24, 30))]
    assert dropped.stats().skipped == 5
    for bad in ({"rank": 3}, {"rank": -1}, {"world_size": 0}):
        with pytest.raises(ValueError, match="BatchShare"):
            BatchShare(blocks, 6, **{"rank": 0, "world_size": 3, **bad})


def test_average_gradients_weighs_ranks_by_their_rows(data):
    def work(communicator):
        schema = make_schema()
        weight = torch.nn.Parameter(torch.zeros(2))
        with headrace.DataLoader(data / "held_out.txt", 16, schema=schema, communicator=communicator) as loader:
            *_, last = loader  # 50 rows: one global batch of 48, one of 2
            weight.grad = torch.full((2,), float("nan") if last.num_rows == 0 else float(communicator.rank))
            headrace.average_gradients(communicator, [weight], last)
            return last.num_rows, weight.grad.tolist()

    results = run_ranks(3, work)
    assert [rows for rows, _ in results] == [0, 1, 1]
    assert [grad for _, grad in results] == [[1.5, 1.5]] * 3
