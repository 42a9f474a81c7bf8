"""What must not differ between ranks is refused at the start, by name and rank."""

from __future__ import annotations

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
        ({"seed": 5}, r"shuffle is \(True, 0, 131072\) on ranks 0, 2, \(True, 5, 131072\) on rank 1"),
        ({"window": 3}, "window is 32 on ranks 0, 2, 3 on rank 1"),
        ({"dim": 8}, "schema is .* on ranks 0, 2, .* on rank 1"),
        ({"uneven": "pad"}, "uneven is short on ranks 0, 2, pad on rank 1"),
        ({"dataset": "a.txt"}, r"files is .* \(2 files\) on ranks 0, 2, .* \(1 files\) on rank 1"),  # L11
        ({"drop_last": True}, "drop_last is False on ranks 0, 2, True on rank 1"),
    ],
)
def test_loaders(data, other, message):
    def work(communicator):
        options = {"dataset": data, **({} if communicator.rank != 1 else other)}
        if options["dataset"] == "a.txt":
            options["dataset"] = data / "a.txt"
        with pytest.raises(RankMismatchError, match="the ranks were started differently: " + message):
            start(communicator, **options)

    run_ranks(3, work)


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"lr": 0.5}, {"frozen": ("C3",)}, {"initializer": headrace.Constant(value=0.5)}]
)
def test_stages(other):  # P75
    def work(communicator):
        options = other if communicator.rank == 0 else {}
        with pytest.raises(RankMismatchError, match="on rank 0"):
            headrace.EmbeddingStage(make_schema(), communicator=communicator, **options)

    run_ranks(2, work)


def test_several_differences_are_all_named():
    def work(communicator):
        facts = {"a": communicator.rank, "b": 1, "c": communicator.rank // 2}
        with pytest.raises(RankMismatchError) as caught:
            agree(communicator.channel("control"), facts, "this test")
        assert str(caught.value) == (
            "the ranks were started differently: a is 0 on rank 0, 1 on rank 1, 2 on rank 2; "
            "c is 0 on ranks 0, 1, 1 on rank 2"
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
