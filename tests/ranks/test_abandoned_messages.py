"""What was under way when an epoch was broken off may come at any time, and spoils nothing."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from headrace.embed.hot_replicas import HotReplicas
from headrace.embed.rank_exchange import RankExchange
from headrace.indexer.exchange.simulated import SimulatedWorld, run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, train


class HeldBack:
    """Early rows of the first step that does not come; given to a rank of the next epoch
    when it has the rows of a step whose inbox is the same, and has not used them."""

    def __init__(self, monkeypatch, steps: int) -> None:
        self.messages: list = []
        self.given = 0
        here = threading.local()
        first: dict[int, int] = {}  # run, by rank
        send_owned, send, gather = RankExchange._send_owned, SimulatedWorld.send, HotReplicas.gather

        def sends_owned(exchange, purpose, step, inbox, plan, *, early):
            first.setdefault(step.rank, step.run)
            here.holds = early and step.run == first[step.rank] and step.step == steps
            try:
                return send_owned(exchange, purpose, step, inbox, plan, early=early)
            finally:
                here.holds = False

        def sends(world, data, path):
            if not getattr(here, "holds", False):
                return send(world, data, path)
            self.messages.append((path, data.copy()))
            return SimpleNamespace(done=True)

        def gathers(replicas, step, inbox):
            gather(replicas, step, inbox)
            if step.run != first[step.rank] and step.step == steps % 2:
                for path, data in [m for m in self.messages if m[0][1] == step.rank]:
                    send(replicas._communicator._transport.world, data, path)
                    self.given += 1

        monkeypatch.setattr(RankExchange, "_send_owned", sends_owned)
        monkeypatch.setattr(SimulatedWorld, "send", sends)
        monkeypatch.setattr(HotReplicas, "gather", gathers)


@pytest.mark.parametrize("steps", [5, 6])
def test_rows_of_an_epoch_that_was_broken_off_come_in_the_next(tmp_path, monkeypatch, steps):
    write_lines(tmp_path / "train.txt", 300, seed=3, ids=400)
    options = {"steps": steps, "epochs": 2}
    reference = train(tmp_path / "train.txt", None, batch_size=24, **options)
    held = HeldBack(monkeypatch, steps)
    parts = run_ranks(2, lambda c: train(tmp_path / "train.txt", c, batch_size=12, **options))
    assert held.given == len(held.messages) == 2
    assert_equal_to_reference(parts, reference)
