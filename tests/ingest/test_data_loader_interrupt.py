"""Ctrl-C within a loader's next(): it goes on exactly, or the iterator is over and the state says where to go on."""

from __future__ import annotations

import signal
import time
from itertools import count

import pytest

import headrace
from headrace.ingest.engine.errors import NodeInterruptedError
from tests.support.batches import digest
from tests.support.interrupts import InterruptAt
from tests.support.loaders import PLACES, ROWS, index_of, loader_of

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WATCHED = ("ingest/", "indexer/dit.py", "formats/uninterrupted.py")


def rows_of(loader):
    """The index without how often rows were used: a batch that was interrupted once it was committed counts twice."""
    return {name: column for name, column in index_of(loader).items() if name != "uses"}


def places_of(batches):
    return [digest(batch, without=PLACES) for batch in batches]


@pytest.mark.parametrize(
    ("options", "every"),
    [
        ({"num_workers": 2, "window": 2}, 53),
        ({"num_workers": 0, "window": 0}, 53),
        ({"train": False}, 101),
    ],
)
@pytest.mark.parametrize("taken", [0, 2])
def test_no_batch_is_lost_or_given_twice(data, schema, options, every, taken):
    def loader():
        evaluated = {"window": 0, "verify_plan": False, "index": index} if "train" in options else {}
        return loader_of(data, schema, batch_size=40, **{**evaluated, **options})

    with loader_of(data, schema, batch_size=40) as trained:
        list(trained)
        index = trained.index
        with loader() as whole:
            expected = places_of(whole)
            rows = rows_of(whole)
        refused = 0
        for at in count(1, every):
            with loader() as loaded:
                it = iter(loaded)
                got = places_of(next(it) for _ in range(taken))
                interrupt = InterruptAt(at, WATCHED)
                batch, raised = interrupt.during(lambda it=it: next(it))
                if interrupt.left > 0:
                    break
                begun = time.process_time()
                if raised is None:
                    got += places_of([batch])
                else:
                    state = loaded.state_dict()
                    assert state["batches"] == taken, interrupt.place
                    try:
                        got += places_of([next(it)])  # it came before anything was done
                    except NodeInterruptedError as told:
                        refused += 1
                        with pytest.raises(NodeInterruptedError, match=r"load_state_dict\(loader.state_dict"):
                            raise told
                        loaded.load_state_dict(state)
                        it = iter(loaded)
                got += places_of(it)
                assert got == expected, interrupt.place
                assert rows_of(loaded) == rows, interrupt.place
                assert loaded.index.num_provisional == 0
                assert time.process_time() - begun < 10
        assert refused > 5


def test_the_next_epoch_after_an_interrupt_is_whole(data, schema):
    with loader_of(data, schema, batch_size=40) as loader:
        it = iter(loader)
        next(it)
        _, raised = InterruptAt(400, WATCHED).during(lambda: next(it))
        assert isinstance(raised, KeyboardInterrupt)
        with pytest.raises(NodeInterruptedError):
            next(it)
        assert sum(batch.num_rows for batch in loader) == ROWS


def test_real_signals_at_any_time(data, schema):
    """A timer's, again and again, that raise while the loader is at work."""

    class Impatient(BaseException):  # as KeyboardInterrupt
        pass

    def handle(number, frame):
        while frame is not None:
            if frame.f_code is headrace.DataLoader._next.__code__:
                raise Impatient
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0.0002)

    with loader_of(data, schema, batch_size=4) as whole:
        expected = places_of(whole)
    before = signal.signal(signal.SIGALRM, handle)
    got, interrupts, again = [], 0, 0
    try:
        with loader_of(data, schema, batch_size=4) as loader:
            it = iter(loader)
            while len(got) < len(expected):
                if interrupts < 60:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 * (1 + interrupts % 7))
                try:
                    batch = next(it)
                except Impatient:
                    interrupts += 1
                    continue
                except NodeInterruptedError:
                    again += 1
                    loader.load_state_dict(loader.state_dict())
                    it = iter(loader)
                    continue
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                got += places_of([batch])
            assert got == expected
            assert list(it) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts >= 5
    assert again >= 5
