"""Random cases of the whole protocol, on ranks that take turns in a drawn order; a failure prints its seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.embed.hot_replicas import HotReplicas
from headrace.embed.rank_exchange import Gradients, RankExchange
from headrace.ingest.location_set import LocationSet
from headrace.ingest.nodes.index_ranks import IndexRanks
from headrace.ingest.step_plan import FetchKeys
from tests.support.rank_simulation import draw, run


def run_cases(first: int, last: int) -> None:
    for seed in range(first, last):
        try:
            run(draw(seed), seed)
        except BaseException:
            print(f"tests.support.rank_simulation: seed {seed}: {draw(seed)}")
            raise


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lot", range(20))
def test_random_cases(lot):
    run_cases(50 * lot, 50 * (lot + 1))


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("lot", range(40))
def test_twenty_thousand_more(lot):
    run_cases(1000 + 500 * lot, 1500 + 500 * lot)


def every_row_early(monkeypatch):
    monkeypatch.setattr(LocationSet, "contains", lambda self, locations: np.zeros(len(locations), np.bool_))


def early_ignores_hot_rows(monkeypatch):
    monkeypatch.setattr(IndexRanks, "_used", lambda self, owned, hot: [LocationSet(o.locations) for o in owned])


def entering_rows_not_urgent(monkeypatch):
    real = IndexRanks._urgent
    monkeypatch.setattr(IndexRanks, "_urgent", lambda self, g, before, used, hot: real(self, g, before, used, None))


def late_updates_never_made(monkeypatch):
    monkeypatch.setattr(RankExchange, "settle", lambda self: self._deferred.clear())


def one_inbox(monkeypatch):
    real = RankExchange._inbox
    monkeypatch.setattr(RankExchange, "_inbox", lambda self, step, parity: real(self, step, parity=0))


def entering_without_state(monkeypatch):
    real = HotReplicas._enter

    def enter(self, g, hot, step):
        real(self, g, hot, step)
        self._rows[g][hot.entering, self._stores[g].dim :] = 0

    monkeypatch.setattr(HotReplicas, "_enter", enter)


def hot_rows_not_written_through(monkeypatch):
    real = HotReplicas._update
    nobody = np.empty(0, np.int64)

    def update(self, g, hot, grads, rule):
        keys = FetchKeys(ids=nobody.astype(np.uint64), tables=nobody.astype(np.uint32), missing=nobody.astype(np.bool_))
        none = replace(hot, own=nobody, own_locations=nobody.astype(np.uint64), own_keys=keys)
        real(self, g, none, grads, rule)

    monkeypatch.setattr(HotReplicas, "_update", update)


def gradients_of_one_rank_left_out(monkeypatch):
    real = Gradients.total

    def total(self, threads):
        self._arrival.wait()
        self._received[:1] = 0
        return real(self, threads)

    monkeypatch.setattr(Gradients, "total", total)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "fault",
    [
        every_row_early,
        early_ignores_hot_rows,
        entering_rows_not_urgent,
        late_updates_never_made,
        one_inbox,
        entering_without_state,
        hot_rows_not_written_through,
        gradients_of_one_rank_left_out,
    ],
)
def test_a_planted_fault_is_caught(monkeypatch, fault):
    fault(monkeypatch)
    for seed in range(120):
        try:
            run(draw(seed), seed)
        except (AssertionError, RuntimeError):
            return
    pytest.fail("no case found it")
