"""The stage in ordinary training loops: optimizers, schedulers, scaling, accumulation, clipping, frozen tables."""

from __future__ import annotations

import gc
import warnings
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.embed.checkpoint import load_run, save_run
from headrace.embed.clipping import clip_grad_norm_
from headrace.embed.initializer import Constant, Normal, Uniform
from headrace.embed.row_keys import RowKeys
from headrace.embed.run_folder import CheckpointError
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table

FOUR = Schema(  # dims and optimizers of all kinds in one model; two tables share a layout
    sparse=(
        Sparse(name="a", multi_hot=True),
        Sparse(name="b"),
        Sparse(name="c", multi_hot=True),
        Sparse(name="d"),
        Sparse(name="e", multi_hot=True),
    ),
    tables=(
        Table(name="a", dim=4, optimizer="sgd"),
        Table(name="b", dim=8, optimizer="adagrad"),
        Table(name="c", dim=3, optimizer="adam"),
        Table(name="d", dim=4, optimizer="rowwise_adagrad"),
        Table(name="e", dim=3, optimizer="adam"),
    ),
)
ONE = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=2, optimizer="sgd"),))
MODES = pytest.mark.parametrize("mode", ["direct", "arena"])


def bits(stage):
    return {name: array.tobytes() for name, array in stage.state_arrays().items()}


def rows_of(stage):
    return stage.state_arrays()["rows_0"].tolist()


def one_stage(mode="direct", **options):
    return EmbeddingStage(ONE, mode=mode, **{"lr": 1.0, "initializer": Constant(value=0.0), **options})


@pytest.fixture
def batches(kit):
    """Ids 1 and 2; 2 and 3; 1 and 4; 2 twice."""
    index = kit.ToyIndex()
    ids = ([[1], [2]], [[2], [3]], [[1], [4]], [[2], [2]])
    return kit.plan_batches([kit.make_batch(ONE, {"a": i}, index) for i in ids], window=1, spare=0)


@pytest.fixture
def stream(kit, rng):
    index = kit.ToyIndex()
    ids = [kit.random_ids(FOUR, 9, rng) for _ in range(20)]
    return ids, kit.plan_batches([kit.make_batch(FOUR, one, index) for one in ids], window=1, spare=3), index


@MODES
def test_tables_of_all_optimizers_in_one_model_agree_with_torch(stream, mode):  # P76
    ids, planned, _ = stream
    stage = EmbeddingStage(FOUR, lr=0.1, betas=(0.8, 0.95), initializer=Normal(std=0.5), mode=mode)
    bags, optimizers = {}, []
    for table in FOUR.tables:
        found = list(dict.fromkeys(raw for one in ids for bag in one[table.name] for raw in bag))
        missing = np.array([raw is None for raw in found])
        keys = (np.array([raw or 0 for raw in found], np.uint64), np.full(len(found), table.uid, np.uint32), missing)
        weight = torch.from_numpy(stage.initial_rows(table.dim, *keys))
        bag = torch.nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", sparse=True)
        bags[table.name] = ({raw: i for i, raw in enumerate(found)}, bag)
        kind = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
            "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8),
            "adam": lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.8, 0.95)),
        }
        if table.optimizer in kind:
            optimizers.append(kind[table.optimizer]([bag.weight]))
    generator = torch.Generator().manual_seed(3)
    for one, batch in zip(ids, planned, strict=True):
        expected = []
        for name, (row_of, bag) in bags.items():
            flat = torch.tensor([row_of[raw] for b in one[name] for raw in b], dtype=torch.int64)
            lengths = torch.tensor([0] + [len(b) for b in one[name]])
            expected.append(bag(flat, lengths.cumsum(0)[:-1]))
        out, expected = stage(batch), torch.cat(expected, dim=1)
        columns = [c for c in range(22) if not 15 <= c < 19]  # all but d: torch has no row-wise Adagrad
        torch.testing.assert_close(out[:, columns], expected[:, columns], rtol=1e-5, atol=1e-6)
        factor = torch.randn(out.shape, generator=generator)
        (out * factor).sum().backward()
        (expected * factor).sum().backward()
        stage.step(batch)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert stage.num_steps == 20
    assert [s.width for s in stage.stores] == [g.dim + g.state_floats for g in FOUR.groups]


class TestSchedulers:
    @MODES
    def test_lambda_lr_drives_the_rows(self, batches, mode):
        stage = one_stage(mode)
        optimizer = stage.optimizer()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for batch in batches[:3]:
                optimizer.zero_grad()
                stage(batch).sum().backward()
                optimizer.step()
                scheduler.step()
        # id 1: steps 1 and 0.25; 2: 1 and 0.5; 3: 0.5; 4: 0.25
        assert sorted(rows_of(stage)) == sorted([[-1.25] * 2, [-1.5] * 2, [-0.5] * 2, [-0.25] * 2])

    @pytest.mark.parametrize(
        "make",
        [
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=4),
            lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=8, cycle_momentum=False),
            lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.1),
        ],
    )
    def test_rates_are_those_of_a_torch_optimizer(self, kit, make):
        stage = EmbeddingStage(FOUR, lr=0.3)
        other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        mine, theirs = make(stage.optimizer()), make(other)
        for _ in range(7):
            other.step()
            stage.optimizer().step()
            assert {g["lr"] for g in stage.optimizer().param_groups} == {other.param_groups[0]["lr"]}
            assert stage.lr == other.param_groups[0]["lr"]
            mine.step()
            theirs.step()

    def test_one_cycle_turns_the_betas_of_adam(self):
        stage = EmbeddingStage(FOUR)
        torch.optim.lr_scheduler.OneCycleLR(stage.optimizer(), max_lr=1.0, total_steps=8)
        assert {rule.betas[0] for rule in stage.optimizer().rules()} == {0.95}
        with pytest.raises(ValueError, match="momentum"):
            torch.optim.lr_scheduler.OneCycleLR(one_stage().optimizer(), max_lr=1.0, total_steps=8)

    def test_groups_may_differ(self, kit, stream):
        stage = EmbeddingStage(FOUR, lr=0.0)
        for group in stage.optimizer().param_groups:
            group["lr"] = 0.1 if group["optimizer"] == "sgd" else 0.0
        with pytest.raises(ValueError, match="differ in lr"):
            _ = stage.lr
        batch = stream[1][0]
        before = [stage.read_vectors(g, keys_of(batch, g)) for g in range(4)]
        stage(batch).sum().backward()
        stage.optimizer().step()
        changed = [bool((stage.read_vectors(g, keys_of(batch, g)) != before[g]).any()) for g in range(4)]
        assert changed == [group.optimizer == "sgd" for group in FOUR.groups]

    def test_a_bad_rate_is_refused_before_anything_changes(self, batches):
        stage = one_stage()
        stage(batches[0]).sum().backward()
        stage.optimizer().param_groups[0]["lr"] = float("nan")
        with pytest.raises(ValueError, match="lr=nan"):
            stage.optimizer().step()
        stage.optimizer().param_groups[0]["lr"] = torch.tensor(0.5)  # torch allows tensors
        stage.optimizer().step()
        assert rows_of(stage) == [[-0.5, -0.5]] * 2


def keys_of(batch, group):
    return RowKeys.of(batch.groups[group])


@MODES
class TestOptimizer:
    def test_step_and_zero_grad_as_in_torch(self, batches, mode):
        stage = one_stage(mode)
        optimizer = stage.optimizer()
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer is stage.optimizer()
        out = stage(batches[0])
        optimizer.zero_grad()  # between forward and backward
        out.sum().backward()
        assert optimizer.param_groups[0]["params"][0].grad.tolist() == [[1, 1]] * 2
        optimizer.step()
        optimizer.step()  # applied once
        assert rows_of(stage) == [[-1, -1]] * 2
        stage(batches[1]).sum().backward()
        optimizer.zero_grad()  # dropped
        optimizer.step()
        assert rows_of(stage) == [[-1, -1]] * 2
        assert stage.num_steps == 1

    def test_a_closure_is_called_first(self, batches, mode):
        stage = one_stage(mode)

        def closure():
            stage.optimizer().zero_grad()
            loss = stage(batches[0]).sum()
            loss.backward()
            return loss

        assert stage.optimizer().step(closure).item() == 0
        assert rows_of(stage) == [[-1, -1]] * 2

    def test_weight_decay_is_of_touched_rows_only(self, batches, mode):
        stage = one_stage(mode, initializer=Constant(value=8.0), weight_decay=0.25)
        for batch in batches[:2]:  # id 1 is not in the second
            stage(batch).sum().backward()
            stage.step(batch)
        first, second = 8 - (1 + 0.25 * 8), 5 - (1 + 0.25 * 5)
        assert sorted(rows_of(stage)) == sorted([[first] * 2, [second] * 2, [first] * 2])

    def test_several_batches_add_up_in_one_step(self, kit, stream, mode):
        ids, planned, _ = stream
        reference, stage = EmbeddingStage(FOUR, lr=0.1), EmbeddingStage(FOUR, lr=0.1, mode=mode)
        for t in range(0, 18, 3):
            merged = {f.name: [bag for one in ids[t : t + 3] for bag in one[f.name]] for f in FOUR.sparse}
            factor = torch.randn(27, 22, generator=torch.Generator().manual_seed(t))
            (whole,) = kit.plan_batches([kit.make_batch(FOUR, merged, stream[2])])
            (reference(whole) * factor).sum().backward()
            reference.step(whole)
            for k, batch in enumerate(planned[t : t + 3]):
                (stage(batch) * factor[9 * k : 9 * k + 9]).sum().backward()
            stage.optimizer().step()
        stage.flush()
        assert stage.num_steps == reference.num_steps == 6
        for mine, theirs in zip(stage.state_arrays().values(), reference.state_arrays().values(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)

    def test_direct_and_arena_accumulate_to_the_same_bits(self, stream, mode):
        stages = [EmbeddingStage(FOUR, mode=m) for m in ("direct", mode)]
        for stage in stages:
            for t, batch in enumerate(stream[1]):
                (stage(batch) * torch.randn(9, 22, generator=torch.Generator().manual_seed(t))).sum().backward()
                if t % 4 == 3:
                    stage.optimizer().step()
        assert bits(stages[0]) == bits(stages[1])

    def test_a_batch_without_backward_adds_nothing(self, batches, mode):
        stage = one_stage(mode)
        stage(batches[0]).sum().backward()
        stage(batches[1])
        stage(batches[2]).sum().backward()
        stage.step(batches[2])
        assert sorted(rows_of(stage)) == [[-2, -2], [-1, -1], [-1, -1]]  # ids 1, 2 and 4

    def test_state_dict_round_trip(self, kit, stream, mode):
        one, other = (EmbeddingStage(FOUR, mode=mode, lr=0.1) for _ in range(2))
        for batch in stream[1][:5]:
            one(batch).sum().backward()
            one.step(batch)
        one.lr = 0.25
        torch.optim.lr_scheduler.StepLR(one.optimizer(), 1)
        state = one.optimizer().state_dict()
        other.optimizer().load_state_dict(state)
        assert (other.num_steps, other.lr) == (5, 0.25)
        assert other.optimizer().state_dict() == state
        assert other.optimizer().param_groups[0]["initial_lr"] == 0.25


def test_groups_cannot_be_added():
    with pytest.raises(RuntimeError, match="row layouts"):
        one_stage().optimizer().add_param_group({"params": []})


def test_other_optimizer_states_are_refused_and_change_nothing():
    stage, other = EmbeddingStage(FOUR), one_stage()
    state = stage.optimizer().state_dict()
    groups = state["param_groups"]
    for wrong in (
        {},
        [],
        {**state, "state": {}},
        {**state, "state": {"num_steps": -1}},
        other.optimizer().state_dict(),
        {**state, "param_groups": groups[::-1]},
        {**state, "param_groups": [{**groups[0], "lr": float("nan")}, *groups[1:]]},
        {**state, "param_groups": [{k: v for k, v in groups[0].items() if k != "eps"}, *groups[1:]]},
    ):
        with pytest.raises((ValueError, TypeError)):
            stage.optimizer().load_state_dict(wrong)
        assert stage.optimizer().state_dict() == state


def test_an_optimizer_does_not_keep_its_stage_alive(batches):
    stage = one_stage()
    optimizer, gone = stage.optimizer(), weakref.ref(stage)
    gc.disable()
    try:
        del stage
        assert gone() is None  # at once: a table may be most of the memory
    finally:
        gc.enable()
    with pytest.raises(RuntimeError, match="stage of this optimizer is gone"):
        optimizer.step()


@MODES
class TestGradScaler:
    def test_gradients_are_unscaled_once(self, batches, mode):
        stage = one_stage(mode)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for batch, explicit in zip(batches[:2], (False, True), strict=True):
            scaler.scale(stage(batch).sum()).backward()
            if explicit:
                scaler.unscale_(stage.optimizer())
            scaler.step(stage.optimizer())
            scaler.update()
        assert sorted(rows_of(stage)) == [[-2, -2], [-1, -1], [-1, -1]]

    def test_an_infinity_skips_the_step_whole(self, stream, mode):
        stage = EmbeddingStage(FOUR, mode=mode)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        factor = torch.ones(9, 22)
        factor[3, 0] = float("inf")  # in one row of one layout
        scaler.scale((stage(stream[1][0]) * factor).sum()).backward()
        scaler.step(stage.optimizer())
        scaler.update()
        stage.optimizer().zero_grad()
        assert scaler.get_scale() == 2.0
        assert stage.num_steps == sum(store.num_written for store in stage.stores) == 0
        scaler.scale(stage(stream[1][1]).sum()).backward()
        scaler.step(stage.optimizer())
        assert stage.num_steps == 1
        assert all(np.isfinite(a).all() for n, a in stage.state_arrays().items() if n.startswith("rows"))

    def test_with_accumulation_and_clipping(self, batches, mode):
        stage, dense = one_stage(mode), torch.nn.Parameter(torch.zeros(1))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = torch.optim.SGD([dense], lr=1.0)
        for batch in batches[:2]:
            scaler.scale((stage(batch) * 3).sum() + dense.sum() * 2).backward()
        scaler.unscale_(stage.optimizer())
        scaler.unscale_(optimizer)
        # rows: 3, 6, 3 in 2 columns; dense 2 + 2
        norm = clip_grad_norm_(stage, [dense], 1.0)
        assert norm.item() == pytest.approx((2 * (9 + 36 + 9) + 16) ** 0.5)
        scaler.step(stage.optimizer())
        scaler.step(optimizer)
        assert dense.item() == pytest.approx(-4 / norm.item(), rel=1e-5)
        expected = sorted([[-x / norm.item()] * 2 for x in (3, 6, 3)])
        np.testing.assert_allclose(sorted(rows_of(stage)), expected, rtol=1e-5)


class TestClipping:
    @MODES
    def test_duplicates_count_once_with_their_sum(self, batches, mode):  # P41
        stage = one_stage(mode)
        for batch in batches[:3]:
            stage(batch).sum().backward()
            stage.step(batch)
        before = rows_of(stage)
        stage(batches[3]).sum().backward()  # id 2 twice: gradient 2 in 2 columns
        assert clip_grad_norm_(stage, max_norm=1e9).item() == pytest.approx(8**0.5)
        assert clip_grad_norm_(stage, max_norm=2**0.5).item() == pytest.approx(8**0.5)
        stage.step(batches[3])
        moved = np.array(before) - np.array(rows_of(stage))
        np.testing.assert_allclose(np.sort(moved[:, 0]), [0, 0, 0, 1], atol=1e-5)

    def test_the_norm_is_that_of_a_dense_embedding(self, kit, stream):
        stage = EmbeddingStage(FOUR)
        linear = torch.nn.Linear(22, 1)
        linear(stage(stream[1][0])).pow(2).sum().backward()
        grads = [p.grad for group in stage.optimizer().param_groups for p in group["params"]]
        expected = sum(g.double().pow(2).sum() for g in [*grads, *(p.grad for p in linear.parameters())]).sqrt()
        assert clip_grad_norm_(stage, linear.parameters(), 0.5).item() == pytest.approx(expected.item(), rel=1e-5)

    def test_without_gradients_the_norm_is_0(self):
        assert clip_grad_norm_(one_stage()).item() == 0

    def test_nan_is_an_error_if_asked_for(self, batches):
        stage = one_stage()
        (stage(batches[0]) * float("nan")).sum().backward()
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_(stage, error_if_nonfinite=True)


@MODES
class TestFrozenTables:
    @pytest.mark.parametrize("frozen", [("a",), ("c",), ("b", "e"), ("a", "b", "c", "d", "e")])
    def test_they_are_read_and_never_written(self, kit, stream, mode, frozen):
        plain = EmbeddingStage(FOUR, lr=0.1, mode=mode, weight_decay=0.1)
        stage = EmbeddingStage(FOUR, lr=0.1, mode=mode, weight_decay=0.1, frozen=frozen)
        first = [one(stream[1][0]).detach().clone() for one in (plain, stage)]
        assert torch.equal(*first)
        for one in (plain, stage):
            for t, batch in enumerate(stream[1]):
                factor = torch.randn(9, 22, generator=torch.Generator().manual_seed(t))
                out = one(batch) * factor
                if out.requires_grad:
                    out.sum().backward()
                one.step(batch)
        for group in FOUR.groups:
            locations, ids, tables, missing = stream[2].keys(group.ordinal)
            mine = stage.lookup_rows(group.ordinal, locations, ids, tables, missing)
            theirs = plain.lookup_rows(group.ordinal, locations, ids, tables, missing)
            initial = stage.initial_rows(group.dim, ids, tables, missing)
            for name in (FOUR.tables[t].name for t in group.tables):
                of_table = tables == next(t.uid for t in FOUR.tables if t.name == name)
                if name in frozen:
                    assert (mine[of_table, : group.dim] == initial[of_table]).all()
                    assert not stage.stores[group.ordinal].is_written(locations[of_table]).any()
                else:
                    assert mine[of_table].tobytes() == theirs[of_table].tobytes()

    def test_their_gradients_are_not_in_the_norm(self, stream, mode):
        stage = EmbeddingStage(FOUR, mode=mode, frozen=("e",))  # shares its layout with c
        stage(stream[1][0])[:, -3:].sum().backward()
        assert clip_grad_norm_(stage).item() == 0


class TestInitializers:
    def test_one_a_table(self, kit):
        schema = Schema(
            sparse=(Sparse(name="a"), Sparse(name="b"), Sparse(name="c")),
            tables=tuple(Table(name=n, dim=2, optimizer="sgd") for n in "abc"),
        )
        stage = EmbeddingStage(schema, initializer={"a": Constant(value=1.0), "b": Normal(std=3.0)}, lr=1.0)
        ids = {n: [[7], [8]] for n in "abc"}
        (batch,) = kit.plan_batches([kit.make_batch(schema, ids, kit.ToyIndex())])
        out = stage(batch)
        same = EmbeddingStage(schema, initializer=Normal(std=3.0))(batch), EmbeddingStage(schema)(batch)
        assert out[:, :2].tolist() == [[1, 1]] * 2
        assert torch.equal(out[:, 2:4], same[0][:, 2:4])
        assert torch.equal(out[:, 4:], same[1][:, 4:])
        group = batch.groups[0]
        keys = (group.unique_ids.numpy(), group.unique_tables.numpy(), group.missing.numpy())
        assert np.array_equal(stage.initial_rows(2, *keys), stage.read_vectors(0, keys_of(batch, 0)))
        out.sum().backward()
        stage.step(batch)  # and the update starts from it
        assert stage(replace(batch, plan=None))[:, :2].tolist() == [[0, 0]] * 2

    @pytest.mark.parametrize("wrong", [{"zzz": Uniform()}, {"a": 3}, 5])
    def test_others_are_refused(self, wrong):
        with pytest.raises((ValueError, TypeError), match="initializer"):
            EmbeddingStage(ONE, initializer=wrong)

    def test_frozen_names_tables(self):
        with pytest.raises(ValueError, match="'zzz' is not a table"):
            EmbeddingStage(ONE, frozen=["zzz"])
        with pytest.raises(TypeError, match="frozen='a'"):
            EmbeddingStage(ONE, frozen="a")


class TestForwardsThatDiffer:
    @MODES
    def test_a_batch_without_backward_is_passed_by(self, batches, mode):
        stage = one_stage(mode)
        stage(batches[0])
        stage(batches[1]).sum().backward()
        stage.step(batches[1])
        assert rows_of(stage) == [[-1, -1]] * 2

    @MODES
    def test_a_batch_of_the_same_plan_with_weights_is_another(self, batches, mode):
        stage = one_stage(mode, initializer=Constant(value=1.0))
        group = replace(batches[0].groups[0], weights=torch.tensor([2.0, 3.0]))
        first, second = batches[0], replace(batches[0], groups=(group,))
        out = stage(first)
        assert out.tolist() == [[1, 1]] * 2
        out.sum().backward()
        out = stage(second)
        assert out.tolist() == [[2, 2], [3, 3]]
        out.sum().backward()
        stage.step(second)
        assert rows_of(stage) == [[-2, -2], [-3, -3]]  # 1 - (1 + 2), 1 - (1 + 3)


class TestStageState:
    @MODES
    def test_round_trip_through_a_file(self, kit, stream, mode, tmp_path):
        options = {"lr": 0.1, "initializer": {"a": Normal(std=1.0)}, "mode": mode}
        whole = EmbeddingStage(FOUR, **options)
        for batch in stream[1][:10]:
            whole(batch).pow(2).sum().backward()
            whole.step(batch)
        whole.lr = 0.05
        torch.save(whole.state_dict(), tmp_path / "stage.pt")
        rest = kit.plan_batches([replace(b, plan=None) for b in stream[1][10:]], run=2)
        resumed = EmbeddingStage(FOUR, **options)
        resumed.load_state_dict(torch.load(tmp_path / "stage.pt", weights_only=True))
        for stage in (whole, resumed):
            for batch in rest:
                stage(batch).pow(2).sum().backward()
                stage.step(batch)
        assert resumed.num_steps == 20  # Adam's bias correction goes on
        assert bits(resumed) == bits(whole)

    def test_other_states_are_refused_and_change_nothing(self, batches):
        stage = one_stage()
        stage(batches[0]).sum().backward()
        stage.step(batches[0])
        state = stage.state_dict()
        assert set(state) == {"locations_0", "rows_0", "optimizer", "options"}
        before = (bits(stage), stage.optimizer().state_dict())
        for wrong in (
            {},
            {k: v for k, v in state.items() if k != "rows_0"},
            {**state, "rows_0": state["rows_0"][:1]},
            {**state, "rows_0": [1]},
            {**state, "options": {**state["options"], "seed": 1}},
            {**state, "optimizer": {}},
            one_stage(initializer=Uniform()).state_dict(),
        ):
            with pytest.raises(ValueError):
                stage.load_state_dict(wrong)
            assert (bits(stage), stage.optimizer().state_dict()) == before

    @pytest.mark.parametrize(
        "change",
        [
            lambda s: {"locations_0": s["locations_0"].reshape(-1, 1)},
            lambda s: {"locations_0": s["locations_0"][:2].reshape(1, 2), "rows_0": s["rows_0"][:1]},
            lambda s: {"rows_0": s["rows_0"].to_sparse()},
            lambda s: {"rows_0": torch.empty(s["rows_0"].shape, device="meta")},
            lambda s: {"rows_0": s["rows_0"].to(torch.complex64).conj()},
            lambda s: {"optimizer": {**s["optimizer"], "state": {"num_steps": 10**400}}},
            lambda s: {
                "optimizer": {**s["optimizer"], "param_groups": [{**s["optimizer"]["param_groups"][0], "lr": 1e40}]}
            },
        ],
    )
    def test_tensors_that_are_no_plain_rows_are_refused_and_change_nothing(self, batches, change):
        stage = one_stage()
        stage(batches[0]).sum().backward()
        stage.step(batches[0])
        state, before = stage.state_dict(), (bits(stage), stage.optimizer().state_dict())
        with pytest.raises(ValueError):
            stage.load_state_dict({**state, **change(state)})
        assert (bits(stage), stage.optimizer().state_dict()) == before

    def test_tensors_of_any_memory_layout_are_taken(self, batches):
        stage = one_stage()
        stage(batches[0]).sum().backward()
        stage.step(batches[0])
        state, before = stage.state_dict(), bits(stage)
        strided = torch.stack([state["locations_0"]] * 2, 1)[:, 0]
        transposed = state["rows_0"].t().contiguous().t()
        assert not strided.is_contiguous()
        assert not transposed.is_contiguous()
        stage.load_state_dict({**state, "locations_0": strided, "rows_0": transposed})
        assert bits(stage) == before


@MODES
def test_a_checkpoint_keeps_rates_and_the_number_of_steps(kit, stream, mode, tmp_path):
    class Index:
        def write_snapshot(self, path):
            Path(path).write_bytes(b"")

    options = {"initializer": {"a": Normal(std=1.0)}, "mode": mode}
    whole, model = EmbeddingStage(FOUR, lr=0.1, betas=(0.5, 0.75), **options), torch.nn.Linear(1, 1)
    for batch in stream[1][:10]:
        whole(batch).pow(2).sum().backward()
        whole.step(batch)
    for g, group in enumerate(whole.optimizer().param_groups):
        group["lr"] = 0.01 * (g + 1)
    save_run(tmp_path / "c", loader_state={}, index=Index(), stage=whole, model=model, optimizer=None, step=10)
    resumed = EmbeddingStage(FOUR, **options)
    load_run(tmp_path / "c").restore(index=None, stage=resumed, model=model)
    rest = kit.plan_batches([replace(b, plan=None) for b in stream[1][10:]], run=2)
    for stage in (whole, resumed):
        for batch in rest:
            stage(batch).pow(2).sum().backward()
            stage.step(batch)
    assert resumed.num_steps == 20
    assert bits(resumed) == bits(whole)
    with pytest.raises(CheckpointError, match="table_initializers="):
        load_run(tmp_path / "c").restore(index=None, stage=EmbeddingStage(FOUR), model=model)


class TestThreads:
    def test_results_do_not_depend_on_their_number(self, kit):  # P74, invariant 9
        rng = np.random.default_rng(5)
        index = kit.ToyIndex()
        ids = [
            {
                f.name: [rng.integers(0, 3000, 3 if f.multi_hot else 1).tolist() for _ in range(2000)]
                for f in FOUR.sparse
            }
            for _ in range(2)
        ]
        batches = kit.plan_batches([kit.make_batch(FOUR, one, index) for one in ids])
        results = []
        for num_threads in (1, 2, 5):
            stage = EmbeddingStage(FOUR, num_threads=num_threads, lr=0.1)
            outputs = []
            for batch in batches:
                out = stage(batch)
                out.backward(torch.from_numpy(np.random.default_rng(1).standard_normal(out.shape, np.float32)))
                stage.step(batch)
                outputs.append(out.detach().numpy().tobytes())
            results.append((outputs, bits(stage)))
        assert results[0] == results[1] == results[2]

    @pytest.mark.parametrize("wrong", [0, 257, 1.0, "2", True])
    def test_numbers_are_checked(self, wrong):
        with pytest.raises((ValueError, TypeError), match="num_threads="):
            EmbeddingStage(ONE, num_threads=wrong)
