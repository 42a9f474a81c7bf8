"""Ranks whose rows end at different steps: they stop together, and nothing waits for ever (L1-L6, P7, P8, P13)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace
from headrace.indexer.exchange.errors import RankFailedError
from headrace.indexer.exchange.simulated import run_ranks
from headrace.ingest.nodes.index_ranks import UnevenRanksError
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, make_schema, rows_by_key, train

ROWS = (25, 8, 0)
"""Of each rank's own file; batches of 8."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uneven")
    paths = [folder / f"{rank}.txt" for rank in range(len(ROWS))]
    for rank, rows in enumerate(ROWS):
        write_lines(paths[rank], rows, seed=rank, ids=30)
    return paths


def over_ranks(files, **options):
    return run_ranks(len(ROWS), lambda c: train(files[c.rank], c, batch_size=8, steps=1000, shard=False, **options))


def test_short_batches_are_exact(files, tmp_path):
    """The global batches are what the ranks have left, the one reference trains on the same."""
    parts = over_ranks(files)
    assert [part["seen"] for part in parts] == [[8, 8, 8, 1], [8, 0, 0, 0], [0, 0, 0, 0]]
    lines = [path.read_text().splitlines(keepends=True) for path in files]
    joined = tmp_path / "joined.txt"
    joined.write_text("".join(lines[0][:8] + lines[1] + lines[0][8:]))
    assert_equal_to_reference(parts, by_batches(joined, [16, 8, 8, 1]))


def by_batches(path, sizes):
    """One process over batches of these sizes."""
    schema = make_schema()
    reader = headrace.CriteoFiles(path, schema)
    rows = headrace.RowBlock.concat(list(headrace.ReadRows(reader)))
    starts = np.cumsum([0, *sizes])
    blocks = [rows.slice(int(start), size) for start, size in zip(starts, sizes, strict=False)]
    index = headrace.Index(blocks, schema, headrace.DIT(headrace.ingest.nodes.index.index_tables(schema)))
    stage = headrace.EmbeddingStage(schema, lr=0.01, eps=1e-4, num_threads=1)
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(13 + stage.output_dim, 1)
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    sgd = torch.optim.SGD(head.parameters(), lr=0.01)
    for batch in headrace.PlanWindow(index, schema, window=2, capacity=4000):
        sgd.zero_grad()
        logits = head(torch.cat([batch.dense, stage(batch)], dim=1)).squeeze(1)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
        sgd.step()
        stage.step(batch)
    return {"rows": rows_by_key(schema, index.index, stage), "dense": [p.detach().numpy() for p in head.parameters()]}


def test_padding_changes_no_parameter(files):
    short, padded = over_ranks(files), over_ranks(files, uneven="pad")
    assert [part["seen"] for part in padded] == [[8, 8, 8, 1]] * 3
    assert [part["handed_out"] for part in padded] == list(ROWS)  # padding is no row
    for one, other in zip(short, padded, strict=True):
        assert one["rows"].keys() == other["rows"].keys()
        assert all((one["rows"][key] == other["rows"][key]).all() for key in one["rows"])
        assert all((a == b).all() for a, b in zip(one["dense"], other["dense"], strict=True))


def test_dropping_stops_together_and_counts(files):
    parts = run_ranks(2, lambda c: train(files[c.rank], c, batch_size=8, steps=1000, shard=False, uneven="drop"))
    assert [part["seen"] for part in parts] == [[8], [8]]
    assert [part["skipped"] for part in parts] == [8, 0]
    assert [part["seen"] for part in over_ranks(files, uneven="drop")] == [[], [], []]


def test_raising_raises_on_all_ranks(files):
    def work(communicator):
        with pytest.raises(
            UnevenRanksError, match="step 1: the source of rank 1 is at its end, others are not"
        ) as caught:
            train(files[communicator.rank], communicator, batch_size=8, steps=1000, shard=False, uneven="raise")
        assert caught.value.ranks == (1,)

    run_ranks(2, work)


def test_an_error_of_one_rank_is_raised_on_all(files):
    def broken(block):
        raise RuntimeError("this transform does not work")

    def work(communicator):
        transform = broken if communicator.rank == 1 else None
        expected = RuntimeError if communicator.rank == 1 else RankFailedError
        with pytest.raises(expected, match="this transform does not work"):
            train(files[communicator.rank], communicator, batch_size=8, shard=False, transform=transform)

    run_ranks(3, work)


def test_an_owner_that_cannot_insert_is_named_on_all(files, monkeypatch):
    def work(communicator):
        schema = make_schema()
        index = headrace.DIT(headrace.ingest.nodes.index.index_tables(schema), owner_rank=communicator.rank)
        if communicator.rank == 2:
            monkeypatch.setattr(index, "index", no_memory)
        expected = MemoryError if communicator.rank == 2 else RankFailedError
        with pytest.raises(expected, match="full"):
            train(files[0], communicator, batch_size=8, schema=schema, index=index)

    run_ranks(3, work)


def no_memory(columns):
    raise MemoryError("the index is full")


@pytest.mark.parametrize("size", [2, 5])
def test_one_file_and_fewer_rows_than_ranks(files, size):  # L4, L5, P13
    parts = run_ranks(size, lambda c: train(files[1], c, batch_size=1, steps=1000))
    assert sum(map(sum, (part["seen"] for part in parts))) == ROWS[1]
    assert len({len(part["seen"]) for part in parts}) == 1
