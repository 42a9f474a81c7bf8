"""Gradients of the dense part that some ranks, or all, did not get."""

from __future__ import annotations

import pytest
import torch

import headrace
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "train.txt"
    write_lines(path, 9, seed=3, ids=40)
    return path


def averaged(data, grads, *, ranks=2, batch_size=4):
    """Of each step and rank what `grads` (rank -> gradients of parameters of two values, or None) are averaged to."""

    def work(communicator):
        model = [torch.nn.Parameter(torch.ones(2)) for _ in grads[0]]
        seen = []
        with headrace.DataLoader(data, batch_size, schema=make_schema(), communicator=communicator) as loader:
            for batch in loader:
                for p, grad in zip(model, grads[communicator.rank], strict=True):
                    p.grad = None if grad is None else torch.tensor(grad)
                headrace.average_gradients(communicator, model, batch)
                seen.append([None if p.grad is None else p.grad.tolist() for p in model])
        return seen

    return run_ranks(ranks, work)


def test_a_parameter_without_a_gradient_on_any_rank_stays_without(data):
    grads = {0: [[1.0, 2.0], None, None, [0.0, 0.0]], 1: [[3.0, 6.0], None, [4.0, 8.0], None]}
    both = [[2.0, 4.0], None, [2.0, 4.0], [0.0, 0.0]]
    alone = [[3.0, 6.0], None, [4.0, 8.0], None]  # the last batch: one row, of rank 1; what rank 0 says does not count
    assert averaged(data, grads) == [[both, alone]] * 2


def test_an_optimizer_leaves_it_alone(data):
    def work(communicator):
        used, unused = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
        adam = torch.optim.AdamW([used, unused], lr=0.1, weight_decay=0.1)
        with headrace.DataLoader(data, 4, schema=make_schema(), communicator=communicator) as loader:
            for batch in loader:
                adam.zero_grad()
                (batch.dense.sum(1) * used).mean().backward()
                headrace.average_gradients(communicator, [used, unused], batch)
                adam.step()
        return used.item() != 1.0, unused.item()

    assert run_ranks(2, work) == [(True, 1.0)] * 2
