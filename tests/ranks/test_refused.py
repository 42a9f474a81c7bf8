"""What must not differ between ranks is refused at the start, by name and rank."""

from __future__ import annotations

from functools import partial

import pytest

import headrace
from headrace.indexer.exchange.agreement import agree
from headrace.indexer.exchange.errors import RankMismatchError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    for name in ("a.txt", "b.txt"):
        write_lines(folder / name, 40, seed=1)
    return folder


def start(communicator, dataset, *, dim=4, **options):
    options = {"shuffle": True, "timeout": 20, **options}
    with headrace.DataLoader(
        dataset,
        4,
        schema=make_schema() if dim == 4 else headrace.criteo_schema(dim=dim),
        communicator=communicator,
        **options,
    ) as loader:
        next(iter(loader))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 5}, "seed differs: 0 on ranks 0, 2; 5 on rank 1"),
        ({"window": 3}, "window differs: 32 on ranks 0, 2; 3 on rank 1"),
        ({"window": 3, "seed": 5}, "window differs: 32 on .*; seed differs: 0 on ranks 0, 2; 5 on rank 1"),
        (
            {"dim": 8},
            "schema differs: tables: 'C1' dim 4 and 8, 'C2' dim 4 and 8, 'C3' dim 4 and 8 and 23 more "
            r"\(in ranks 0, 2 and rank 1\)",
        ),
        ({"uneven": "pad"}, "uneven differs: short on ranks 0, 2; pad on rank 1"),
        (
            {"dataset": ["a.txt"]},  # L11
            "files differs: 2 files on ranks 0, 2, 1 on rank 1; the first that is missing is number 2, b.txt",
        ),
        (
            {"dataset": ["b.txt", "a.txt"]},
            "files differs: the first that differs is number 1: a.txt on ranks 0, 2, b.txt on rank 1",
        ),
        ({"drop_last": True}, "drop_last differs: False on ranks 0, 2; True on rank 1"),
    ],
)
def test_loaders(data, other, message):
    def work(communicator):
        options = {"dataset": ["a.txt", "b.txt"], **({} if communicator.rank != 1 else other)}
        options["dataset"] = [data / name for name in options["dataset"]]
        with pytest.raises(RankMismatchError, match=f"the ranks were started differently: {message}\n"):
            start(communicator, **options)

    run_ranks(3, work)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "seed differs: 1 on rank 0; 0 on rank 1"),
        ({"lr": 0.5}, r"lr of C1, C2, C3 and 23 more \(optimizer\) differs: 0.5 on rank 0; 0.01 on rank 1"),
        ({"frozen": ("C3",)}, "frozen differs: C3 on rank 0; none on rank 1"),
        (
            {"initializer": headrace.Constant(value=0.5)},
            r"initializer of all tables differs: Constant\(value=0.5\) on rank 0; Uniform\(.*\) on rank 1",
        ),
        (
            {"initializer": {"C3": headrace.Constant(value=0.5)}},
            r"initializer of C3 differs: Constant\(value=0.5\) on rank 0; not given on rank 1",
        ),
    ],
)
def test_stages(other, message):  # P75
    def work(communicator):
        options = other if communicator.rank == 0 else {}
        with pytest.raises(RankMismatchError, match=f"differently: {message}$"):
            headrace.EmbeddingStage(make_schema(), communicator=communicator, **options)

    run_ranks(2, work)


def test_different_calls_are_named():
    """One rank makes a stage, the others wait for each other."""

    def work(communicator):
        stage = partial(headrace.EmbeddingStage, make_schema(), communicator=communicator)
        call = stage if communicator.rank == 1 else communicator.barrier
        with pytest.raises(RankMismatchError) as caught:
            call()
        assert str(caught.value) == (
            "the ranks are at different places: its arrival on ranks 0, 2; its EmbeddingStage (all ranks make one) on "
            "rank 1"
        )

    run_ranks(3, work)


def test_long_values_are_cut_and_many_differences_counted():
    def work(communicator):
        rank = communicator.rank
        facts = {"path": "x" * 300 if rank else "y", "options": {f"o{i}": rank + i for i in range(9)}}
        with pytest.raises(RankMismatchError) as caught:
            agree(communicator.channel("control"), facts, "this test")
        assert len(str(caught.value)) < 400
        assert "options o2 differs: 2 on rank 0; 3 on rank 1; 4 on rank 2" in str(caught.value)
        assert "6 more of options" in str(caught.value)

    run_ranks(3, work)


def test_several_differences_are_all_named():
    def work(communicator):
        facts = {"a": communicator.rank, "b": 1, "c": communicator.rank // 2}
        with pytest.raises(RankMismatchError) as caught:
            agree(communicator.channel("control"), facts, "this test")
        assert str(caught.value) == (
            "the ranks were started differently: a differs: 0 on rank 0; 1 on rank 1; 2 on rank 2; "
            "c differs: 0 on ranks 0, 1; 1 on rank 2"
        )

    run_ranks(3, work)


def test_a_loader_and_a_stage_that_do_not_belong_together(data):
    schema = make_schema()
    with headrace.connect("none") as communicator, headrace.DataLoader(data, 4, schema=schema) as loader:
        batch = next(iter(loader))
        with pytest.raises(ValueError, match="give DataLoader and EmbeddingStage the same communicator"):
            headrace.EmbeddingStage(schema, communicator=communicator)(batch)
    with headrace.connect("none") as communicator:
        with headrace.DataLoader(data, 4, schema=schema, communicator=communicator) as loader:
            batches = iter(loader)
            first, second = next(batches), next(batches)
        with pytest.raises(ValueError, match="give DataLoader and EmbeddingStage the same communicator"):
            headrace.EmbeddingStage(schema)(first)
        stage = headrace.EmbeddingStage(schema, communicator=communicator)
        stage(first).sum().backward()
        with pytest.raises(RuntimeError, match="over ranks each batch has a step of its own"):
            stage(second)


def test_an_index_of_another_rank(data):
    schema = make_schema()
    index = headrace.DIT(headrace.ingest.nodes.index.index_tables(schema), owner_rank=1)
    with headrace.connect("none") as communicator, pytest.raises(ValueError, match="owner_rank=1 on rank 0"):
        headrace.DataLoader(data, 4, schema=schema, index=index, communicator=communicator)
