"""What waits for the next step, as a training loop meets it: batches passed by, several forwards of one backward."""

from __future__ import annotations

import gc
import warnings
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.embed import step_warnings
from headrace.embed.arena import PlanError
from headrace.embed.clipping import clip_grad_norm_
from headrace.embed.initializer import Constant, Normal
from headrace.embed.row_keys import RowKeys
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table

ONE = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=2, optimizer="sgd"),))
TWO = Schema(
    sparse=(Sparse(name="a", multi_hot=True), Sparse(name="b"), Sparse(name="c", multi_hot=True, pooling="mean")),
    tables=(Table(name="a", dim=3), Table(name="b", dim=2, optimizer="sgd"), Table(name="c", dim=3)),
)
pytestmark = pytest.mark.parametrize("mode", ["direct", "arena"])


def one_stage(mode, **options):
    return EmbeddingStage(ONE, mode=mode, **{"lr": 1.0, "initializer": Constant(value=0.0), **options})


def vectors(stage, ids, index):
    """The first value of each id's row, as plain floats."""
    uid = ONE.tables[0].uid
    places = np.array([index.locate(0, uid, False, raw, insert=False) for raw in ids], np.uint64)
    keys = RowKeys(places, np.array(ids, np.uint64), np.full(len(ids), uid, np.uint32), np.zeros(len(ids), np.bool_))
    return stage.read_vectors(0, keys)[:, 0].tolist()


@pytest.fixture
def index(kit):
    return kit.ToyIndex()


@pytest.fixture
def batches(kit, index):
    """Ids 1 and 2; 2 and 3; 1 and 4; 2 twice."""
    ids = ([[1], [2]], [[2], [3]], [[1], [4]], [[2], [2]])
    return kit.plan_batches([kit.make_batch(ONE, {"a": i}, index) for i in ids], window=1, spare=0)


def clip(stage):
    return clip_grad_norm_(stage, max_norm=1.0)


FOLDS = pytest.mark.parametrize("fold", [lambda stage: None, clip, EmbeddingStage.pending_leaves])


class TestSkip:
    @FOLDS
    @pytest.mark.parametrize("factor", [1.0, float("nan"), float("inf")])
    def test_it_drops_what_the_batch_gave(self, batches, index, mode, fold, factor):
        stage = one_stage(mode)
        (stage(batches[0]).sum() * factor).backward()
        fold(stage)
        stage.skip(batches[0])
        stage(batches[1]).sum().backward()
        stage.step(batches[1])
        assert vectors(stage, [1, 2, 3], index) == [0, -1, -1]

    @FOLDS
    def test_what_batches_before_it_gave_stays(self, batches, index, mode, fold):
        stage = one_stage(mode)
        stage(batches[0]).sum().backward()
        (stage(batches[1]).sum() * float("nan")).backward()
        fold(stage)
        stage.skip(batches[1])
        stage.optimizer().step()
        assert vectors(stage, [1, 2, 3], index) == [-1, -1, 0]
        assert stage.num_steps == 1

    def test_a_batch_without_a_gradient_of_its_own_takes_none_along(self, batches, index, mode):
        stage = one_stage(mode)
        stage(batches[0]).sum().backward()
        stage(batches[1])
        for leaf in stage.pending_leaves():  # of the first alone
            leaf.grad.mul_(float("nan"))
        stage.skip(batches[1])
        stage.optimizer().step()
        assert vectors(stage, [1, 2, 3], index) == [-1, -1, 0]

    @FOLDS
    def test_a_batch_that_did_not_go_forward_takes_nothing_along(self, batches, index, mode, fold):
        stage = one_stage(mode)
        (stage(batches[0]).sum() * 0.25).backward()  # a norm of 0.5: clipping leaves it
        fold(stage)
        stage.skip(batches[1])
        stage.optimizer().step()
        assert vectors(stage, [1, 2, 3], index) == [-0.25, -0.25, 0]
        assert stage.num_steps == 1

    def test_rows_pushed_in_between_stay(self, batches, index, mode):
        stage = one_stage(mode)
        stage(batches[0]).sum().backward()
        stage(batches[1]).sum().backward()
        stage.pending_leaves()
        stage.add_gradients([(0, RowKeys.of(batches[1].groups[0]), np.full((2, 2), 4.0, np.float32))])
        stage.skip(batches[1])
        stage.optimizer().step()
        assert vectors(stage, [1, 2, 3], index) == [-1, -5, -4]

    def test_parts_of_the_batch_go_with_it(self, kit, index, mode):
        ids = [[1], [2], [3]]
        (batch, following) = kit.plan_batches([kit.make_batch(ONE, {"a": ids}, index)] * 2, hot=1)
        stage = one_stage(mode)
        for part in batch.split_hot().parts:
            stage(part).sum().backward()
        stage.skip(batch)
        stage(following).sum().backward()
        stage.step(following)
        assert vectors(stage, [1, 2, 3], index) == [-1, -1, -1]

    def test_after_a_check_that_failed(self, batches, index, mode):
        stage = one_stage(mode, check_finite=True)
        (stage(batches[0]).sum() * float("nan")).backward()
        with pytest.raises(FloatingPointError, match=r"stage\.skip\(batch\).*stage\.optimizer\(\)\.zero_grad\(\)"):
            stage.step(batches[0])
        stage.skip(batches[0])
        stage(batches[1]).sum().backward()
        stage.step(batches[1])
        assert vectors(stage, [1, 2, 3], index) == [0, -1, -1]

    def test_a_batch_whose_gradients_were_added_to_a_later_one_is_refused(self, batches, index, mode):
        stage = one_stage(mode)
        stage(batches[0]).sum().backward()
        stage(batches[1]).sum().backward()
        with pytest.raises(RuntimeError, match=r"step 0 of run 1, whose gradients have been added .*zero_grad\(\)"):
            stage.skip(batches[0])
        stage.step(batches[1])  # nothing has changed
        assert vectors(stage, [1, 2, 3], index) == [-1, -2, -1]


class TestOneBackward:
    """Of several forwards."""

    def test_rows_are_those_of_a_backward_each(self, kit, rng, mode):
        index = kit.ToyIndex()
        made = [kit.make_batch(TWO, kit.random_ids(TWO, 9, rng), index) for _ in range(12)]
        planned = kit.plan_batches(made, window=1, spare=0)
        results = []
        for together in (False, True):
            stage = EmbeddingStage(TWO, mode=mode, lr=0.1, initializer=Normal(std=0.5))
            for begin in range(0, 12, 4):
                total = torch.zeros(())
                for t in range(begin, begin + 4):
                    factor = torch.randn(9, 8, generator=torch.Generator().manual_seed(t))
                    loss = (stage(planned[t]) * factor).sum() / 4
                    if together:
                        total = total + loss
                    else:
                        loss.backward()
                if together:
                    total.backward()
                stage.step(planned[begin + 3])
            results.append({name: array.tobytes() for name, array in stage.state_arrays().items()})
            assert stage.num_steps == 3
        assert results[0] == results[1]  # summed in the order of the forwards, whatever order autograd takes

    def test_they_are_shown_to_a_scaler_and_clipped(self, batches, index, mode):
        stage = one_stage(mode)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        outputs = [stage(batch) for batch in batches[:3]]
        scaler.scale(sum(out.sum() for out in outputs)).backward()
        scaler.unscale_(stage.optimizer())
        assert clip_grad_norm_(stage, max_norm=1e9).item() == pytest.approx((2 * (4 + 4 + 1 + 1)) ** 0.5)
        scaler.step(stage.optimizer())
        assert vectors(stage, [1, 2, 3, 4], index) == [-2, -2, -1, -1]

    def test_zero_grad_drops_them_and_a_skip_its_own(self, batches, index, mode):
        stage = one_stage(mode)
        first, second = stage(batches[0]), stage(batches[1])
        (first.sum() + second.sum()).backward(retain_graph=True)
        stage.optimizer().zero_grad()
        (first.sum() + second.sum()).backward()
        stage.skip(batches[1])
        stage.optimizer().step()
        assert vectors(stage, [1, 2, 3], index) == [-1, -1, 0]

    def test_a_gradient_after_the_step_waits_for_the_next(self, batches, index, mode):
        stage = one_stage(mode)
        first, second = stage(batches[0]), stage(batches[1])
        second.sum().backward(retain_graph=True)
        stage.step(batches[1])
        assert vectors(stage, [1, 2, 3], index) == [0, -1, -1]
        (first.sum() + second.sum()).backward()
        stage.optimizer().step()
        assert vectors(stage, [1, 2, 3], index) == [-1, -3, -2]

    def test_after_a_state_was_loaded_it_is_an_error(self, batches, mode):
        stage = one_stage(mode)
        outputs = [stage(batch) for batch in batches[:2]]
        stage.load_state_arrays(stage.state_arrays())
        for out in outputs:
            with pytest.raises(RuntimeError, match=r"rows were replaced after its forward.*stage\(batch\) again"):
                out.sum().backward()
        stage.optimizer().step()
        assert stage.num_steps == 0

    @pytest.mark.parametrize("let_go", [False, True])
    def test_after_rows_were_forgotten_it_is_an_error(self, batches, index, mode, let_go):
        stage = one_stage(mode)
        out = stage(batches[0])
        out.sum().backward(retain_graph=True)
        if let_go:
            stage(batches[1])
        stage.forget_rows(0, RowKeys.of(batches[0].groups[0]).locations[:1])  # of id 1
        with pytest.raises(RuntimeError, match=r"rows were replaced after its forward"):
            out.sum().backward()
        stage.optimizer().step()
        assert vectors(stage, [1, 2], index) == [0, -1]

    def test_what_waits_for_it_lives_no_longer_than_the_graph(self, batches, mode):
        stage = one_stage(mode)
        out = stage(batches[0])
        leaf = weakref.ref(stage.optimizer().param_groups[0]["params"][0])
        gc.collect()
        gc.disable()
        try:
            stage(batches[1])
            assert leaf() is not None
            del out
            assert leaf() is None
        finally:
            gc.enable()


class TestRefusedForwards:
    def test_a_gap_forgets_nothing(self, batches, index, mode):
        if mode == "direct":
            pytest.skip("direct mode has no arena, so it refuses no batch for its order")
        stage = one_stage(mode)
        stage(batches[0]).sum().backward()
        for use in (stage, stage.skip):
            with pytest.raises(PlanError, match="step 2 of run 1 came, but step 1"):
                use(batches[2])
        stage.step(batches[0])
        assert vectors(stage, [1, 2], index) == [-1, -1]

    def test_its_batch_may_go_forward_again(self, batches, index, mode):
        if mode == "direct":
            pytest.skip("direct mode has no arena, so it refuses no batch for its order")
        stage = one_stage(mode)
        stage(batches[0]).sum().backward()
        with pytest.raises(PlanError):
            stage(batches[2])
        stage(batches[0]).sum().backward()
        stage.skip(batches[0])  # both
        stage(batches[1]).sum().backward()
        stage.step(batches[1])
        assert vectors(stage, [1, 2, 3], index) == [0, -1, -1]

    def test_rows_that_moved_before_the_refusal(self, kit, index, mode):
        if mode == "direct":
            pytest.skip("nothing moves")
        made = [kit.make_batch(ONE, {"a": [[i], [i + 1]]}, index) for i in (1, 3)]
        first, second = kit.plan_batches(made)  # the rows of the second take the slots of the first
        stage = one_stage(mode)
        stage(first).sum().backward()
        group = second.plan.groups[0]
        wrong = group.slots[::-1].copy()
        damaged = _with_slots(second, wrong)
        with pytest.raises(PlanError, match="gathers row"):
            stage(damaged)
        stage.step(first)
        assert vectors(stage, [1, 2, 3, 4], index) == [-1, -1, 0, 0]


def _with_slots(batch, slots):
    plan = batch.plan
    return replace(batch, plan=replace(plan, groups=(replace(plan.groups[0], slots=slots),)))


def test_steps_that_are_forgotten_are_told_once(batches, mode, monkeypatch):
    monkeypatch.setattr(step_warnings, "MANY_BATCHES", 3)
    stage = one_stage(mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in batches[:3]:
            stage(batch).sum().backward()
    with pytest.warns(UserWarning, match=r"gradients of 3 batches wait .* call stage\.step\(batch\)") as told:
        stage(batches[3]).sum().backward()
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stage(batches[3])
        stage.step(batches[3])
