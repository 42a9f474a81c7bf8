"""Ctrl-C at any line: what belongs together happens whole or not at all."""

from __future__ import annotations

import signal
import sys
import threading
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import headrace.embed
from headrace.embed.move_worker import MoveWorker
from headrace.embed.slot_table import SlotTable
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table

SCHEMA = Schema(
    sparse=tuple(Sparse(name=name, table=name.upper(), multi_hot=True) for name in "ab"),
    tables=(Table(name="A", dim=3, optimizer="adam"), Table(name="B", dim=2, optimizer="sgd")),
)
EVERY = 7
"""Of so many lines one is tried."""


@pytest.fixture(autouse=True)
def ctrl_c():
    """Python's own handler, which a runner may have replaced."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupt:
    """A trace function that sends SIGINT at line number `at` of those of the package that are run.

    Not in `move_worker.py`: it would come between a block under a lock and the lock's release, where Python looks for
    no signals.
    """

    folders = tuple(str(Path(path).resolve()) for path in headrace.embed.__path__) + tuple(headrace.embed.__path__)

    def __init__(self, at):
        self.left = at

    def __call__(self, frame, event, arg):
        path = frame.f_code.co_filename
        if not path.startswith(self.folders) or path.endswith("move_worker.py"):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self

    def during(self, use):
        """Whether KeyboardInterrupt came out of `use`."""
        before = sys.gettrace()
        try:
            sys.settrace(self)
            use()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def bits(stage):
    return {name: array.tobytes() for name, array in stage.state_arrays().items()}, stage.num_steps


@pytest.fixture(scope="module")
def batches(kit):
    index, rng = kit.ToyIndex(), np.random.default_rng(3)
    made = [kit.make_batch(SCHEMA, kit.random_ids(SCHEMA, 4, rng, distinct=9), index) for _ in range(3)]
    return kit.plan_batches(made, window=1)


@pytest.fixture(scope="module")
def saved(batches):
    stage = EmbeddingStage(SCHEMA, seed=5, num_threads=1)
    use_of(stage, batches, None)["step"]()
    return stage.state_dict()


def use_of(stage, batches, saved):
    """What is interrupted, by name, with gradients of two batches waiting."""
    for batch, factor in zip(batches[:2], (1.0, -2.0), strict=True):
        (stage(batch) * factor).sum().backward()
    return {
        "step": lambda: stage.step(batches[1]),
        "sums": stage.pending_leaves,
        "skip": lambda: stage.skip(batches[1]),
        "forward": lambda: stage(batches[2]),
        "load": lambda: stage.load_state_dict(saved),
    }


class TestStage:
    def run(self, batches, saved, mode, overlap, name, at):
        """State at the end, None if the run has not so many lines. What was interrupted is called again."""
        stage = EmbeddingStage(SCHEMA, seed=5, num_threads=1, mode=mode, overlap=overlap)
        use, interrupt = use_of(stage, batches, saved)[name], Interrupt(at)
        steps = stage.num_steps
        if interrupt.during(use):
            if name == "step" and stage.num_steps == steps + 1:
                with pytest.raises(RuntimeError, match="was stepped already"):
                    use()
            else:
                use()
        stage.optimizer().step()
        found = bits(stage)
        stage.close()
        return None if at and interrupt.left > 0 else found

    @pytest.mark.parametrize("name", ["step", "sums", "skip", "forward", "load"])
    @pytest.mark.parametrize(("mode", "overlap"), [("direct", False), ("arena", False), ("arena", True)])
    def test_ctrl_c_parts_nothing(self, batches, saved, mode, overlap, name):
        expected = self.run(batches, saved, mode, overlap, name, 0)
        tried = 0
        for at in count(1 + tried, EVERY):
            found = self.run(batches, saved, mode, overlap, name, at)
            if found is None:
                break
            assert found == expected, f"line {at}"
            tried += 1
        assert tried > 5

    def test_a_step_that_is_out_of_memory_is_made_whole_by_the_next(self, kit, monkeypatch):
        schema = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=3, optimizer="sgd"),))
        (batch,) = kit.plan_batches([kit.make_batch(schema, {"a": [[1], [2]]}, kit.ToyIndex())])
        mark, failed = SlotTable.mark_dirty, []

        def failing(table, slots):
            if not failed:
                failed.append(slots)
                raise MemoryError
            mark(table, slots)

        monkeypatch.setattr(SlotTable, "mark_dirty", failing)
        found = []
        for mode in ("arena", "direct"):
            stage = EmbeddingStage(schema, lr=1.0, mode=mode, overlap=False)
            stage(batch).sum().backward()
            if mode == "arena":
                with pytest.raises(MemoryError):
                    stage.step(batch)
            stage.step(batch)
            found.append(bits(stage))
        assert found[0] == found[1]
        assert failed

    def test_a_step_that_fails_between_two_layouts_is_told(self, batches, saved, monkeypatch):
        stage = EmbeddingStage(SCHEMA, seed=5, num_threads=1)
        step = use_of(stage, batches, saved)["step"]

        def failing(*args, **kwargs):
            raise ValueError("for the test")

        with monkeypatch.context() as patch:
            patch.setattr(stage.stores[1], "update", failing)
            with pytest.raises(ValueError, match="for the test"):
                step()
        with pytest.raises(RuntimeError, match=r"a step was interrupted half-way: .* load one again"):
            step()
        stage.load_state_dict(saved)
        assert bits(stage)[0] == {name: saved[name].numpy().tobytes() for name in bits(stage)[0]}

    def test_the_optimizer_goes_with_the_rows(self, batches, saved, monkeypatch):
        stage = EmbeddingStage(SCHEMA, seed=5, num_threads=1)

        def interrupt():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(stage._residency, "empty", interrupt)
            with pytest.raises(KeyboardInterrupt):
                stage.load_state_dict(saved)
        assert stage.num_steps == 0
        with pytest.raises(RuntimeError, match="loading a state was interrupted half-way"):
            stage(batches[0])
        stage.load_state_dict(saved)
        assert stage.num_steps == 1


class Nothing:
    """A job that says that it was run."""

    def __init__(self, number, run):
        self.number, self.last_wait, self._run = number, -1, run

    def vacate(self):
        self._run.append(self.number)

    def fetch(self): ...
    def land(self): ...
    def hold(self): ...


class TestWorker:
    @pytest.mark.parametrize("end", [MoveWorker.drop, lambda worker: worker.close(60)])
    @pytest.mark.parametrize("next_use", ["submit", "drain", "close", "drop"])
    def test_an_end_that_was_interrupted_is_taken_up(self, end, next_use, monkeypatch):
        worker, run = MoveWorker(), []
        worker.submit(Nothing(0, run))
        worker.wait(0)

        def interrupt(self, timeout=None):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "join", interrupt)
            with pytest.raises(KeyboardInterrupt):
                end(worker)
        {
            "submit": lambda: None,
            "drain": worker.drain,
            "close": lambda: worker.close(60),
            "drop": worker.drop,
        }[next_use]()
        worker.submit(Nothing(1, run))
        monkeypatch.setattr("headrace.embed.move_worker.PATIENCE_S", 60.0)
        worker.wait(1)
        assert run == [0, 1]
        worker.close(60)
