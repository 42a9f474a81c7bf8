"""Rows that move beside the trainer: the same bits whatever the timing of threads; errors, interrupts, ends."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch

from headrace.embed import move_worker
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.clipping import clip_grad_norm_
from headrace.embed.initializer import Constant
from headrace.embed.move_worker import MoveWorker, _Desk
from headrace.embed.row_keys import RowKeys
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table

MIXED = Schema(  # two layouts, a shared table, all of which move
    sparse=(
        Sparse(name="a", table="wide"),
        Sparse(name="b", table="small", multi_hot=True),
        Sparse(name="c", table="wide", multi_hot=True, pooling="mean"),
    ),
    tables=(Table(name="wide", dim=6), Table(name="small", dim=3, optimizer="adam")),
)
ONE = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=2, optimizer="sgd"),))


def bits(stage):
    return {name: array.tobytes() for name, array in stage.state_arrays().items()}


def train(stage, batches, seed=0):
    generator = torch.Generator().manual_seed(seed)
    outputs = []
    for batch in batches:
        out = stage(batch)
        outputs.append(out.detach().numpy().tobytes())
        (out * torch.randn(out.shape, generator=generator)).sum().backward()
        stage.step(batch)
    return outputs


@pytest.fixture
def jitter(monkeypatch):
    """jitter(seed): reads and writes of chunks pause at random, threads are switched often."""
    interval = sys.getswitchinterval()

    def start(seed, *, write_s=1e-3, read_s=1e-3):
        rng = random.Random(seed)
        sys.setswitchinterval(1e-5)
        for name, longest in (("read", read_s), ("write", write_s)):
            done = getattr(ChunkStore, name)

            def paused(self, *args, done=done, longest=longest, **kwargs):
                time.sleep(rng.random() * longest)
                result = done(self, *args, **kwargs)
                time.sleep(rng.random() * longest)
                return result

            monkeypatch.setattr(ChunkStore, name, paused)

    yield start
    sys.setswitchinterval(interval)


def random_stream(kit, seed, *, steps, distinct=40):
    rng = np.random.default_rng(seed)
    index = kit.ToyIndex()
    sizes = rng.integers(0, 9, steps).tolist()
    return [
        kit.make_batch(MIXED, kit.random_ids(MIXED, n, rng, distinct=distinct), index, num_rows=n) for n in sizes
    ], rng


def check_one_case(kit, seed, *, steps=12):
    """Two runs of a random stream give the bits of direct mode."""
    batches, rng = random_stream(kit, seed, steps=steps)
    options = {
        "window": int(rng.integers(0, 2)),
        "hot": int(rng.choice([0, 0, 3])),
        "spare": [None, 0, 1, 5][int(rng.integers(0, 4))],
    }
    cut = steps // 2
    planned = [kit.plan_batches(batches[:cut], **options, rng=rng), kit.plan_batches(batches[cut:], run=2, **options)]
    results = []
    for options in ({"mode": "direct"}, {"mode": "arena", "overlap": False}, {"mode": "arena", "overlap": True}):
        stage = EmbeddingStage(MIXED, lr=0.1, num_threads=1, **options)
        outputs = train(stage, planned[0]) + train(stage, planned[1], seed=seed)
        results.append((outputs, bits(stage)))
        stage.close(60)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("seed", range(25))
def test_the_bits_do_not_depend_on_timing(kit, jitter, seed):
    jitter(seed)
    check_one_case(kit, seed)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 110))
def test_the_bits_do_not_depend_on_timing_long(kit, jitter, seed):
    jitter(seed, write_s=3e-3)
    for case in range(10):
        check_one_case(kit, 1000 * seed + case, steps=20)


class LateDesk(_Desk):
    """Whatever is done is done as late as it may be: jobs run when the trainer waits for them, write-backs land when a
    fetch names them, when they are too old, or when all is to be done. This does not depend on the timing of threads.
    """

    def __init__(self):
        super().__init__()
        self._asked = -1
        self._ending = False

    def wait(self, number):
        with self._monitor.lock:
            self._asked = max(self._asked, number)
            self._monitor.changed()
        return super().wait(number)

    def drain(self):
        with self._to_the_end():
            super().drain()

    def rests(self, timeout_s):
        with self._to_the_end():
            return super().rests(timeout_s)

    @contextlib.contextmanager
    def _to_the_end(self):
        with self._monitor.lock:
            self._ending = True
            self._monitor.changed()
        yield
        self._ending = False

    @property
    def _is_to_run(self):
        return self._owes(self._asked) or (self._ending and super()._is_to_run)

    @property
    def _busy(self):
        return super()._is_to_run or self._running


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setattr(move_worker, "_Desk", LateDesk)


@pytest.mark.parametrize("seed", range(25))
def test_all_may_be_as_late_as_plans_permit(kit, late, seed):
    check_one_case(kit, seed)


class TestTheCheckCanFail:
    """What the waits are for: without them the same cases go wrong."""

    def outcome(self, kit):
        for seed in range(6):
            try:
                check_one_case(kit, seed)
            except AssertionError:
                return "other bits"
        return "the same bits"

    def test_without_the_wait_of_the_gather(self, kit, late, monkeypatch):
        monkeypatch.setattr(MoveWorker, "wait", lambda self, number: None)
        assert self.outcome(kit) == "other bits"

    def test_without_the_wait_of_the_fetch(self, kit, late, monkeypatch):
        run = _Desk._run

        def careless(self, job):
            job.last_wait = -1
            run(self, job)

        monkeypatch.setattr(_Desk, "_run", careless)
        assert self.outcome(kit) == "other bits"


def one_batch_each(kit, ids, **options):
    index = kit.ToyIndex()
    return kit.plan_batches([kit.make_batch(ONE, {"a": [[i] for i in some]}, index) for some in ids], **options)


def make_one(**options):
    return EmbeddingStage(ONE, **{"mode": "arena", "lr": 1.0, "initializer": Constant(value=0), **options})


@pytest.fixture
def batches(kit):
    return one_batch_each(kit, [[1, 2], [2, 3], [1, 4], [5], [1, 6], [2]], window=1, spare=0)


class TestStepsThatDoNotFollowTheUsualOrder:
    @pytest.mark.parametrize("seed", range(8))
    def test_gradients_of_several_batches_before_one_step(self, kit, jitter, seed):
        jitter(seed)
        batches, rng = random_stream(kit, seed, steps=14)
        planned = kit.plan_batches(batches, window=1, spare=0, rng=rng)
        results = []
        for options in ({"mode": "direct"}, {"mode": "arena"}):
            stage = EmbeddingStage(MIXED, lr=0.1, **options)
            for t, batch in enumerate(planned):
                if t % 5 == 4:
                    stage.skip(batch)
                    continue
                stage(batch).sum().backward()
                if t % 3 == 2:
                    clip_grad_norm_(stage, max_norm=0.5)
                    stage.optimizer().step()
                    stage.optimizer().zero_grad()
            results.append(bits(stage))
        assert results[0] == results[1]

    def test_a_gradient_that_was_clipped_and_then_passed_by_goes_to_its_own_row(self, kit):
        batches = one_batch_each(kit, [[1], [2], [3]], spare=None)
        results = []
        for overlap in (False, True):
            stage = make_one(overlap=overlap)
            stage(batches[0]).sum().backward()
            clip_grad_norm_(stage, max_norm=1e9)
            for batch in batches[1:]:
                stage.skip(batch)
            stage.optimizer().step()
            results.append(stage.state_arrays()["rows_0"].tolist())
        assert results[0] == results[1] == [[-1, -1]]  # row 1 alone; its slot has another row now

    def test_rows_are_read_and_written_while_others_move(self, kit, jitter):
        jitter(1, write_s=5e-3, read_s=5e-3)
        batches = one_batch_each(kit, [[i, i + 1] for i in range(12)], window=1, spare=0)
        stage = make_one()
        group = batches[5].groups[0]
        keys = RowKeys.of(group)
        expected = [[3, 3], [3, 3]]  # 5, and the two steps that each row is in
        for t, batch in enumerate(batches):
            stage(batch).sum().backward()
            if t == 3:
                stage.write_rows(0, keys, np.full((2, 2), 5, np.float32))
            stage.step(batch)
            if t >= 6:
                assert stage.read_vectors(0, keys).tolist() == expected
        assert stage.eval()(batches[5]).tolist() == expected


class Broken(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


class TestErrors:
    @pytest.mark.parametrize("method", ["read", "write"])
    @pytest.mark.parametrize("overlap", [False, True])
    def test_an_error_while_rows_move_is_raised_with_its_type_and_stays(self, batches, monkeypatch, method, overlap):
        stage = make_one(overlap=overlap)
        train(stage, batches[:1])
        saved = stage.state_dict()

        def broken(self, *args, **kwargs):
            raise Broken(1, 2)

        with monkeypatch.context() as patch:
            patch.setattr(ChunkStore, method, broken)
            with pytest.raises(Broken) as found:
                train(stage, batches[1:])
            assert found.value.args == (1, 2)
        for use in (stage.flush, stage.state_arrays, lambda: stage(batches[5]), lambda: stage.skip(batches[1])):
            with pytest.raises(Broken if overlap else RuntimeError):
                use()
        stage.close(60)
        with pytest.raises(Broken if overlap else RuntimeError):
            stage.flush()
        stage.load_state_dict(saved)  # from here on it is sound again
        other = make_one()
        other.load_state_dict(saved)
        for one in (stage, other):
            train(one, batches)
        assert bits(stage) == bits(other)

    def test_a_movement_that_was_interrupted_half_way_is_not_trained_on(self, batches, monkeypatch):
        stage = make_one()
        train(stage, batches[:1])

        def interrupted(self, job):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(MoveWorker, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                train(stage, batches[1:])
        with pytest.raises(RuntimeError, match=r"movement \d of run 1 was interrupted half-way: .* last checkpoint"):
            stage.flush()

    def test_ctrl_c_while_the_trainer_waits_loses_nothing(self, batches, monkeypatch):
        expected = EmbeddingStage(ONE, lr=1.0, initializer=Constant(value=0))
        train(expected, batches)
        stage = make_one()
        train(stage, batches[:1])
        stage.flush()
        gate, read = threading.Event(), ChunkStore.read

        def slow(self, *args, **kwargs):
            assert gate.wait(60)
            read(self, *args, **kwargs)

        monkeypatch.setattr(ChunkStore, "read", slow)
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                train(stage, batches[1:])
        finally:
            timer.join()
            signal.signal(signal.SIGINT, previous)
        gate.set()
        # which step was interrupted is known by the step that the stage asks for
        done = stage.num_steps
        generator = torch.Generator().manual_seed(0)
        factors = [torch.randn(2 if len(b) == 2 else 1, 2, generator=generator) for b in batches[1:]]
        for batch, factor in list(zip(batches[1:], factors, strict=True))[done - 1 :]:
            (stage(batch) * factor).sum().backward()
            stage.step(batch)
        other = EmbeddingStage(ONE, lr=1.0, initializer=Constant(value=0))
        train(other, batches[:1])
        train(other, batches[1:])
        assert bits(stage) == bits(other)

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_state_is_loaded_when_no_row_moves_any_more(self, batches, monkeypatch, fails):
        """Else the thread is met in the stores, which take one caller at a time."""
        stage = make_one()
        train(stage, batches[:1])
        saved = stage.state_dict()
        prepare, write, prepared, done = ChunkStore.prepare, ChunkStore.write, threading.Event(), []

        def slow(self, *args, **kwargs):
            prepared.wait(0.5)
            done.append("written")
            if fails:
                raise Broken(1, 2)
            write(self, *args, **kwargs)

        def noted(self, *args):
            prepared.set()
            done.append("prepared")
            return prepare(self, *args)

        monkeypatch.setattr(ChunkStore, "write", slow)
        monkeypatch.setattr(ChunkStore, "prepare", noted)
        stage(batches[1]).sum().backward()
        stage.step(batches[1])
        with contextlib.suppress(Broken):
            stage(batches[2])  # a row leaves, which this does not wait for
        stage.load_state_dict(saved)
        assert done[-1] == "prepared"
        assert "written" in done
        stage.close(60)


@pytest.fixture
def new_threads():
    """Threads that move rows and were not there when the test began."""
    before = set(threading.enumerate())
    return lambda: [t for t in set(threading.enumerate()) - before if t.name == "headrace-move-rows"]


class TestTheEnd:
    def test_a_stage_that_is_gone_leaves_no_thread(self, batches, new_threads):
        stage = make_one()
        train(stage, batches)
        (thread,) = new_threads()
        gone = weakref.ref(stage)
        del stage
        gc.collect()
        assert gone() is None
        thread.join(60)
        assert not thread.is_alive()

    def test_a_closed_stage_may_be_used_on(self, batches, new_threads):
        stage, other = make_one(), make_one(overlap=False)
        for batch in batches:
            train(stage, [batch])
            stage.close()
            stage.close(timeout_s=60)
            train(other, [batch])
        assert not new_threads()
        assert bits(stage) == bits(other)

    def test_direct_mode_has_no_thread(self, batches, new_threads):
        stage = EmbeddingStage(ONE, overlap=True)
        train(stage, batches)
        assert not new_threads()
        stage.close()

    def test_types_are_checked(self):
        with pytest.raises(TypeError, match="overlap="):
            EmbeddingStage(ONE, mode="arena", overlap=1)
        with pytest.raises(TypeError, match="timeout_s="):
            EmbeddingStage(ONE).close("1")
