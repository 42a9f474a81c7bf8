"""All ranks start an epoch of one number and, where they share the rows, at one place: else rows would be lost."""

from __future__ import annotations

from itertools import islice

import pytest

import headrace
from headrace.indexer.exchange.errors import RankMismatchError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema

ROWS = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("starts") / "train.txt"
    write_lines(path, ROWS, seed=3, ids=40)
    return path


def make_loader(data, communicator, **options):
    return headrace.DataLoader(data, 4, schema=make_schema(), communicator=communicator, timeout=60, **options)


def rows_of(batches):
    return [row for batch in batches for row in batch.source.arrays()[1].tolist()]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shard": False}])
def test_epochs_that_differ_are_refused(data, options):
    def work(communicator):
        with make_loader(data, communicator, **options) as loader:
            loader.set_epoch(communicator.rank)
            with pytest.raises(RankMismatchError, match=r": the epoch differs: 0 on rank 0; 1 on rank 1\n"):
                iter(loader)

    run_ranks(2, work)


def test_an_epoch_that_one_rank_alone_sets_later_is_refused(data):
    def work(communicator):
        with make_loader(data, communicator) as loader:
            assert len(rows_of(loader)) == ROWS // 2
            if communicator.rank == 0:
                loader.set_epoch(5)
            with pytest.raises(RankMismatchError, match=r": the epoch differs: 5 on rank 0; 1 on rank 1\n"):
                iter(loader)

    run_ranks(2, work)


def states_of(loader, steps):
    batches = iter(loader)
    return [loader.state_dict(), *(loader.state_dict() for _ in islice(batches, steps))]


@pytest.mark.parametrize(
    ("train", "options"), [(True, {}), (True, {"shuffle": True, "shuffle_window_rows": 20}), (False, {})]
)
def test_places_that_differ_are_refused(data, train, options):
    """The states of two steps: what lies between them would be read by half of the ranks."""

    def work(communicator):
        with make_loader(data, communicator, **options) as trained:
            loader = trained if train else make_loader(data, communicator, train=False, index=trained.index)
            states = states_of(loader, 5)
            loader.load_state_dict(states[3 if communicator.rank else 4])
            place = r"behind 4 batches \(32 rows\) on rank 0; behind 3 batches \(24 rows\) on rank 1\n"
            with pytest.raises(RankMismatchError, match=f": the place in the data differs: {place}"):
                iter(loader)
            loader.load_state_dict(states[4])  # nothing is lost: all go on alike
            return rows_of(loader)

    parts = run_ranks(2, work)
    assert len(set(parts[0] + parts[1])) == len(parts[0] + parts[1]) == ROWS - 32


def test_a_state_that_one_rank_alone_loads_is_refused(data):
    def work(communicator):
        with make_loader(data, communicator) as loader:
            states = states_of(loader, 2)
            if communicator.rank:
                loader.load_state_dict(states[2])
            else:
                loader.set_epoch(0)
            with pytest.raises(RankMismatchError, match=r"at its beginning on rank 0; behind 2 batches"):
                iter(loader)

    run_ranks(2, work)


def test_ranks_with_rows_of_their_own_may_be_at_different_places(data):
    def work(communicator):
        with make_loader(data, communicator, shard=False) as loader:
            states = states_of(loader, 5)
            loader.load_state_dict(states[3 if communicator.rank else 4])
            return len(rows_of(loader))

    assert run_ranks(2, work) == [ROWS - 16, ROWS - 12]


def test_states_of_one_place_serve_another_number_of_ranks(data):
    """Of two ranks, for three; and blocks of other sizes, as decoding threads may have them, are the same place."""

    def save(communicator):
        with make_loader(data, communicator) as loader:
            return states_of(loader, 3)[-1]

    states = run_ranks(2, save)

    def resume(communicator):
        with make_loader(data, communicator, num_workers=communicator.rank % 2) as loader:
            loader.load_state_dict(states[communicator.rank % 2])
            return rows_of(loader)

    assert sorted(row for part in run_ranks(3, resume) for row in part) == list(range(24, ROWS))
