"""Ctrl-C, or an error, in the middle of a call over ranks: nothing is sent after it, and every later call says so."""

from __future__ import annotations

import threading

import pytest

import headrace
from headrace.embed import rank_exchange, stage_over_ranks
from headrace.embed.held_gradients import HeldGradients
from headrace.embed.hot_replicas import HotReplicas
from headrace.embed.pending import PendingGradients
from headrace.embed.rank_exchange import Gradients, RankExchange
from headrace.indexer.exchange.errors import ExchangeClosedError, RankLostError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema

SCHEMA = make_schema()


class InterruptedOnce:
    """The first call of `method` on rank 0, once it is `armed`, raises `kind` behind its work, or before it."""

    def __init__(self, monkeypatch, owner, method, kind, *, behind):
        self.kind = kind
        done = getattr(owner, method)
        self.armed = self.came = False

        def interrupted(this, *args, **kwargs):
            now = self.armed and not self.came and threading.current_thread() is self.thread
            if now and not behind:
                self.interrupt()
            result = done(this, *args, **kwargs)
            if now and behind:
                self.interrupt()
            return result

        monkeypatch.setattr(owner, method, interrupted)

    def interrupt(self):
        self.came = True
        raise self.kind


def uses(stage, batch):
    yield "forward", lambda: stage(batch)
    yield "step", lambda: stage.optimizer().step()
    yield "skip", lambda: stage.skip(batch)
    yield "flush", stage.flush
    yield "state", stage.state_dict


@pytest.mark.parametrize(("kind", "named"), [(KeyboardInterrupt, "Ctrl-C"), (MemoryError, "MemoryError")])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("owner", "method", "what"),
    [
        (RankExchange, "_send_owned", r"stage\(batch\)"),
        (RankExchange, "_send_deferred", r"stage\(batch\)|stage\.step"),
        (HotReplicas, "gather", r"stage\(batch\)"),
        (RankExchange, "_post_all", r"stage\.step"),
        (RankExchange, "_apply_deferred", r"stage\.step"),
        (RankExchange, "_update", r"stage\.step"),
        (Gradients, "total", r"stage\.step"),
        (rank_exchange, "raise_finding", r"stage\(batch\)"),
        (stage_over_ranks, "leaf_of", r"stage\(batch\)"),  # between two messages
        (PendingGradients, "collect", r"stage\(batch\)"),  # behind the last one
        (RankExchange, "hold", "clip_grad_norm_"),
        (HeldGradients, "told_norms", "clip_grad_norm_"),
    ],
)
def test_what_comes_after_it_is_refused(tmp_path, monkeypatch, owner, method, what, behind, kind, named):
    write_lines(tmp_path / "train.txt", 200, seed=3, ids=300)
    interrupt = InterruptedOnce(monkeypatch, owner, method, kind, behind=behind)

    def train(communicator):
        options = {"check_finite": owner is rank_exchange, "communicator": communicator}
        stage = headrace.EmbeddingStage(SCHEMA, lr=0.01, num_threads=1, **options)
        if communicator.rank == 0:
            interrupt.thread = threading.current_thread()
        options = {"window": 2, "capacity": 4000, "timeout": 60, "communicator": communicator}
        with headrace.DataLoader(tmp_path / "train.txt", 10, schema=SCHEMA, hot_rows=8, **options) as loader:
            for number, batch in enumerate(loader):
                interrupt.armed |= communicator.rank == 0 and number == 3
                try:
                    stage(batch).sum().backward()
                    if what == "clip_grad_norm_":
                        headrace.clip_grad_norm_(stage, [], 0.1)
                    stage.step(batch)
                except kind:
                    for name, use in uses(stage, batch):
                        if name == "forward" and stage._last is not None:
                            continue  # once more, for which nothing is sent
                        told = rf"^({what}) was interrupted half-way \({named}\), .* checkpoint$"
                        with pytest.raises(RuntimeError, match=told):
                            use()
                    return "refused"
        return "trained"

    def rank(communicator):
        try:
            return train(communicator)
        except (RankLostError, ExchangeClosedError):
            return "lost"

    assert run_ranks(2, rank, timeout_s=30.0) == ["refused", "lost"]


def test_what_is_refused_is_no_interruption(tmp_path, monkeypatch):
    """What a call refuses before it sends anything may be mended, and the training goes on."""
    write_lines(tmp_path / "train.txt", 60, seed=3, ids=300)

    def train(communicator):
        stage = headrace.EmbeddingStage(SCHEMA, lr=0.01, num_threads=1, communicator=communicator)
        options = {"window": 2, "capacity": 4000, "timeout": 60, "communicator": communicator}
        with headrace.DataLoader(tmp_path / "train.txt", 10, schema=SCHEMA, **options) as loader:
            for batch in loader:
                stage(batch).sum().backward()
                stage.optimizer().param_groups[0]["lr"] = -1.0
                with pytest.raises(ValueError, match="lr"):
                    stage.step(batch)
                stage.lr = 0.01
                stage.step(batch)
        return stage.num_steps

    assert run_ranks(2, train, timeout_s=30.0) == [3, 3]
