"""The dense part of a model begins alike on all ranks, or is refused at the first call that could tell."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch

import headrace
from headrace.embed import dense_start
from headrace.indexer.exchange.errors import RankMismatchError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "train.txt"
    write_lines(path, 60, seed=3, ids=40)
    return path


def model_of(*seeds, dtype=torch.float32, sizes=(3, 2, 1)):
    """A parameter a seed, each drawn from its own."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    draws = [torch.randn(size, generator=one) for one, size in zip(generators, sizes, strict=False)]
    return [torch.nn.Parameter(draw.to(dtype)) for draw in draws]


def over_steps(data, work, *, ranks=3):
    """``work(communicator, batches)`` on each rank."""

    def on_rank(communicator):
        with headrace.DataLoader(data, 4, schema=make_schema(), communicator=communicator, timeout=60) as loader:
            return work(communicator, iter(loader))

    return run_ranks(ranks, on_rank, timeout_s=30)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {1: {"seeds": (0, 7, 2)}},
            r"parameter 1, of shape \[2\], has other values on rank 1 than on ranks 0, 2: build",
        ),
        ({0: {"seeds": (7, 1, 2)}, 1: {"seeds": (7, 1, 2)}}, r"has other values on rank 2 than on ranks 0, 1"),
        (
            {1: {"seeds": (5, 1, 2)}, 2: {"seeds": (6, 1, 2)}},
            r"parameter 0, of shape \[3\], has other values on each rank",
        ),
        (
            {2: {"seeds": (0, 1, 2), "sizes": (3, 4, 1)}},
            "numbers in them differs: 6 on ranks 0, 1; 8 on rank 2",
        ),
        (
            {2: {"seeds": (0, 1, 2), "sizes": (2, 3, 1)}},
            r"parameter 0 has shape \[3\] and float32 on ranks 0, 1, shape \[2\] and float32 on rank 2",
        ),
        (
            {0: {"seeds": (0, 1, 2), "dtype": torch.bfloat16}},
            r"parameter 0 has shape \[3\] and bfloat16 on rank 0, shape \[3\] and float32 on ranks 1, 2",
        ),
        ({1: {"seeds": (0, 1)}}, "parameters differs: 3 on ranks 0, 2; 2 on rank 1"),
    ],
)
def test_a_model_that_differs_is_refused_on_all_ranks(data, others, message):
    def work(communicator, batches):
        options = {"seeds": (0, 1, 2), **others.get(communicator.rank, {})}
        model = model_of(*options.pop("seeds"), **options)
        with pytest.raises(RankMismatchError, match=message) as caught:
            headrace.average_gradients(communicator, iter(model), next(batches))
        return str(caught.value)

    assert len(set(over_steps(data, work))) == 1


def test_a_parameter_is_compared_once_whatever_it_comes_in(data, monkeypatch):
    compared = []
    monkeypatch.setattr(dense_start, "_digest", lambda p: compared.append(tuple(p.shape)) or "0")

    def work(communicator, batches):
        model = model_of(0, 1, 2)
        for batch in batches:
            headrace.average_gradients(communicator, (p for p in model), batch)

    over_steps(data, work)
    assert sorted(compared) == sorted([(3,), (2,), (1,)] * 3)


def test_a_new_parameter_is_compared_alone_and_an_old_one_is_held_weakly(data):
    def work(communicator, batches):
        model = model_of(0, 1, 2)
        headrace.average_gradients(communicator, model, next(batches))
        with torch.no_grad():
            model[0] += communicator.rank  # it is not looked at again
        model += model_of(communicator.rank)
        with pytest.raises(RankMismatchError, match=r"parameter 3, of shape \[3\], has other values on each rank"):
            headrace.average_gradients(communicator, model, next(batches))
        del model
        gc.collect()
        return [ref for ref in dense_start._seen[communicator].values() if ref() is not None]

    assert over_steps(data, work) == [[]] * 3


def test_it_can_be_compared_again_every_few_steps(data):
    def work(communicator, batches):
        model = model_of(0)
        for batch in itertools.islice(batches, 3):
            headrace.average_gradients(communicator, model, batch, check_every=3)
            with torch.no_grad():
                model[0] += communicator.rank == 1
        with pytest.raises(RankMismatchError, match=r"other values on rank 1 than on ranks 0, 2"):
            headrace.average_gradients(communicator, model, next(batches), check_every=3)

    over_steps(data, work)


def test_a_call_for_another_step_is_refused_on_all_ranks(data):
    """One rank averages twice for one batch: without the comparison each would get the other's step from there on."""

    def work(communicator, batches):
        model, batch = model_of(0), next(batches)
        headrace.average_gradients(communicator, model, batch)
        if communicator.rank != 1:
            batch = next(batches)
        with pytest.raises(RankMismatchError, match="step differs: 1 on ranks 0, 2; 0 on rank 1"):
            headrace.average_gradients(communicator, model, batch)
        for _ in batches:
            pass

    over_steps(data, work)


def test_a_model_that_was_never_averaged_is_compared_where_it_is_saved(data, tmp_path):
    def work(communicator):
        stage = headrace.EmbeddingStage(make_schema(), num_threads=1, communicator=communicator)
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, float(communicator.rank))
        with headrace.DataLoader(data, 4, schema=make_schema(), communicator=communicator) as loader:
            batch = next(iter(loader))
            stage(batch).sum().backward()
            stage.step(batch)
            state = {"loader_state": loader.state_dict(), "index": loader.index, "stage": stage}
            with pytest.raises(RankMismatchError, match=r"parameter 0, of shape \[1, 1\], has other values on rank 1"):
                headrace.save_run(tmp_path / str(communicator.rank), **state, model=model, optimizer=None, step=1)

    run_ranks(2, work)
    assert not list(tmp_path.iterdir())
