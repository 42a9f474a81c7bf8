"""A loader where a torch IterableDataset is wanted: torch's DataLoader, StatefulDataLoader, loops built on them."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import Batch, criteo_schema
from tests.support.loaders import BATCH, ROWS, loader_of, row_order

BATCHES = -(-ROWS // BATCH)


def rows(batches):
    return [row for batch in batches for row in batch.source.arrays()[1].tolist()]


@pytest.fixture
def loader(data):
    with loader_of(data, criteo_schema(dim=4)) as loader:
        yield loader


def test_torch_dataloader_gives_the_batches_as_they_are(loader):
    dataset = loader.as_iterable_dataset()
    assert isinstance(dataset, IterableDataset)
    wrapped = DataLoader(dataset, batch_size=None)
    for _ in range(2):
        batches = list(wrapped)
        assert all(isinstance(batch, Batch) and batch.plan is not None for batch in batches)
        assert rows(batches) == list(range(ROWS))
    assert loader.epoch == 2


def test_the_rows_it_brings_are_permanent_and_no_others(loader):
    found = iter(DataLoader(loader.as_iterable_dataset(), batch_size=None))
    first = next(found)
    loader.close()
    assert len(loader.index) == sum(group.num_unique for group in first.groups)


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_worker_processes_are_refused_and_told_why(loader, kind, method):  # L46: nothing hangs
    wrapped = kind(loader.as_iterable_dataset(), batch_size=None, num_workers=2, multiprocessing_context=method)
    with pytest.raises((RuntimeError, TypeError), match="num_workers=0"):
        next(iter(wrapped))
    assert row_order(loader) == list(range(ROWS))


def test_it_cannot_be_pickled(loader):
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(loader.as_iterable_dataset())


def test_len_and_epochs_are_the_loaders(loader):
    dataset = loader.as_iterable_dataset()
    with pytest.raises(TypeError, match="number of batches is not known"):
        len(dataset)
    dataset.set_epoch(7)
    next(iter(dataset))
    assert loader.epoch == 7


class TestStatefulDataLoader:
    def wrapped(self, loader):
        return StatefulDataLoader(loader.as_iterable_dataset(), batch_size=None)

    @pytest.mark.parametrize("k", [0, 1, 7, BATCHES - 1, BATCHES])
    def test_state_behind_k_batches(self, data, k):  # P51, P52
        schema = criteo_schema(dim=4)
        with loader_of(data, schema, shuffle=True, seed=3) as loader:
            whole = [rows(self.wrapped(loader)) for _ in range(2)]
        with loader_of(data, schema, shuffle=True, seed=3) as loader:
            wrapped = self.wrapped(loader)
            found = iter(wrapped)
            for _ in range(k):
                next(found)
            state = wrapped.state_dict()
        with loader_of(data, schema, shuffle=True, seed=3) as loader:
            wrapped = self.wrapped(loader)
            wrapped.load_state_dict(state)
            expected = whole[0][k * BATCH :] or whole[1]
            assert rows(wrapped) == expected
            if k < BATCHES:
                assert rows(wrapped) == whole[1]  # the next epoch is whole

    def test_state_after_the_end_starts_the_next_epoch(self, data):
        schema = criteo_schema(dim=4)
        with loader_of(data, schema, shuffle=True, seed=3) as loader:
            wrapped = self.wrapped(loader)
            rows(wrapped)
            state = wrapped.state_dict()
            second = rows(wrapped)
        with loader_of(data, schema, shuffle=True, seed=3) as loader:
            wrapped = self.wrapped(loader)
            wrapped.load_state_dict(state)
            assert rows(wrapped) == second


def test_what_lightning_asks_of_a_batch(loader):
    """Its transfer of batches takes whatever has ``to``; see lightning.fabric.utilities.apply_func."""
    batch = next(iter(DataLoader(loader.as_iterable_dataset(), batch_size=None)))
    moved = batch.to(torch.device("cpu"), non_blocking=True)
    assert moved.plan is batch.plan
    assert torch.equal(moved.dense, batch.dense)
