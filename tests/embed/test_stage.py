"""The stage against torch's EmbeddingBag, and direct against arena mode bit for bit."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from headrace.embed.arena import PlanError
from headrace.embed.initializer import Constant, Normal
from headrace.embed.row_keys import RowKeys
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Label, Schema, Sparse, Table

MIXED = Schema(  # two dims, both optimizers, a shared table, sum, mean, multi-hot; groups interleave
    sparse=(
        Sparse(name="a", table="wide"),
        Sparse(name="b", table="small"),
        Sparse(name="c", table="shared", multi_hot=True, pooling="mean"),
        Sparse(name="d", table="shared", multi_hot=True),
        Sparse(name="e", table="plain", multi_hot=True),
    ),
    tables=(
        Table(name="wide", dim=6),
        Table(name="small", dim=3, optimizer="sgd"),
        Table(name="shared", dim=6),
        Table(name="plain", dim=3),
    ),
)
ONE = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=2, optimizer="sgd"),))
SEQUENCES = Schema(
    sparse=(
        Sparse(name="target", table="items"),
        Sparse(name="history", table="items", multi_hot=True, pooling="none"),
        Sparse(name="user"),
    ),
    tables=(Table(name="items", dim=4), Table(name="user", dim=4)),
)


class Reference:
    """EmbeddingBags of torch with a dictionary each; row-wise Adagrad by hand; initial rows from the stage."""

    def __init__(self, schema, stage, ids_of_batches):
        self.schema, self.tables = schema, {}
        for table in schema.tables:
            features = [s.name for s in schema.sparse if s.table == table.name]
            found = [raw for ids in ids_of_batches for f in features for bag in ids[f] for raw in bag]
            row_of = {raw: i for i, raw in enumerate(dict.fromkeys(found))}
            missing = np.array([raw is None for raw in row_of], bool)
            ids = np.array([raw or 0 for raw in row_of], np.uint64)
            weight = stage.initial_rows(table.dim, ids, np.full(len(ids), table.uid, np.uint32), missing)
            bag = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weight), freeze=False, mode="sum", sparse=True)
            self.tables[table.name] = (row_of, bag, torch.zeros(len(row_of)))

    def forward(self, ids, weights=None):
        pooled = []
        for feature in self.schema.sparse:
            row_of, bag, _ = self.tables[feature.table]
            flat = torch.tensor([row_of[raw] for one in ids[feature.name] for raw in one], dtype=torch.int64)
            lengths = torch.tensor([0] + [len(one) for one in ids[feature.name]])
            bag.mode = feature.pooling
            factors = torch.tensor([w for one in weights[feature.name] for w in one]) if weights else None
            pooled.append(bag(flat, lengths.cumsum(0)[:-1], factors))
        return torch.cat(pooled, dim=1)

    def step(self, lr, eps=1e-8):
        for table in self.schema.tables:
            _, bag, state = self.tables[table.name]
            grad = bag.weight.grad.coalesce()
            rows, values = grad.indices()[0], grad.values()
            with torch.no_grad():
                if table.optimizer == "rowwise_adagrad":
                    state[rows] += values.pow(2).mean(dim=1)  # P76
                    values = values / (state[rows].sqrt() + eps)[:, None]
                bag.weight[rows] -= lr * values
            bag.weight.grad = None


def train(stage, batches, *, seed=0):
    """One step for each batch on a random linear loss; the outputs."""
    generator = torch.Generator().manual_seed(seed)
    outputs = []
    for batch in batches:
        out = stage(batch)
        (out * torch.randn(out.shape, generator=generator)).sum().backward()
        stage.step(batch)
        outputs.append(out.detach().clone())
    return outputs


def bits(stage):
    return {name: array.tobytes() for name, array in stage.state_arrays().items()}


@pytest.fixture
def stream(kit, rng):
    """(ids, batches, index) of 30 batches of the mixed schema, of 0 to 12 rows."""
    sizes = [12, 0, 1, *rng.integers(1, 13, 27).tolist()]
    ids = [kit.random_ids(MIXED, n, rng) for n in sizes]
    index = kit.ToyIndex()
    return ids, [kit.make_batch(MIXED, one, index, num_rows=n) for one, n in zip(ids, sizes, strict=True)], index


@pytest.mark.parametrize("mode", ["direct", "arena"])
def test_thirty_steps_equal_torch(kit, stream, mode):  # P41, P43, P76, P3, L17
    ids, batches, _ = stream
    stage = EmbeddingStage(MIXED, lr=0.1, seed=5, initializer=Normal(std=0.5), mode=mode)
    reference = Reference(MIXED, stage, ids)
    generator = torch.Generator().manual_seed(1)
    for one, batch in zip(ids, kit.plan_batches(batches, window=1), strict=True):
        out, expected = stage(batch), reference.forward(one)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
        factor = torch.randn(out.shape, generator=generator)
        (out * factor).sum().backward()
        (expected * factor).sum().backward()
        stage.step(batch)
        reference.step(0.1)
    for group in MIXED.groups:
        for table in (MIXED.tables[t] for t in group.tables):
            row_of, bag, state = reference.tables[table.name]
            keys = stream[2].keys(group.ordinal)
            mine = keys[2] == table.uid
            rows = stage.lookup_rows(group.ordinal, *(k[mine] for k in keys))
            order = [row_of[None if m else int(i)] for i, m in zip(keys[1][mine], keys[3][mine], strict=True)]
            np.testing.assert_allclose(rows[:, : table.dim], bag.weight.detach()[order], rtol=1e-5, atol=1e-6)
            if table.optimizer == "rowwise_adagrad":
                np.testing.assert_allclose(rows[:, table.dim], state[order], rtol=1e-5, atol=1e-6)
            assert np.abs(rows).min(axis=1).max() > 0  # P43: not all zero


VARIANTS = [
    {"window": 0},
    {"window": 1},
    {"window": 0, "spare": 0},
    {"window": 1, "spare": 0},
    {"window": 1, "spare": 7, "hot": 3},
    {"window": 1, "spare": 1000, "hot": 10},
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_arena_gives_the_same_bits_as_direct(kit, stream, variant, rng):  # P85
    _, batches, _ = stream
    direct, arena = EmbeddingStage(MIXED, lr=0.1), EmbeddingStage(MIXED, lr=0.1, mode="arena")
    outputs = [
        train(stage, kit.plan_batches(batches[:15], **variant, rng=rng))
        + train(stage, kit.plan_batches(batches[15:], run=2, **variant, rng=rng), seed=9)
        for stage in (direct, arena)
    ]
    assert [x.numpy().tobytes() for x in outputs[0]] == [x.numpy().tobytes() for x in outputs[1]]
    assert bits(arena) == bits(direct)


def test_another_gradient_gives_other_bits(kit, stream):
    stages = [EmbeddingStage(MIXED), EmbeddingStage(MIXED)]
    for seed, stage in enumerate(stages):
        train(stage, kit.plan_batches(stream[1]), seed=seed)
    assert bits(stages[0]) != bits(stages[1])


def test_weighted_sums_equal_torch(kit, rng):
    schema = Schema(
        sparse=(Sparse(name="a", multi_hot=True), Sparse(name="b")), tables=(Table(name="a", dim=4, optimizer="sgd"),)
    )
    ids = kit.random_ids(schema, 9, rng)
    weights = {f: [rng.random(len(bag)).tolist() for bag in bags] for f, bags in ids.items()}
    batch = kit.make_batch(schema, ids, kit.ToyIndex(), weights=weights)
    stage = EmbeddingStage(schema)
    expected = Reference(schema, stage, [ids]).forward(ids, weights)
    torch.testing.assert_close(stage(batch), expected, rtol=1e-5, atol=1e-6)


def test_columns_are_in_schema_order_and_split_names_them(kit, stream):
    stage = EmbeddingStage(MIXED)
    out = stage(stream[1][0])
    assert stage.feature_dims == {"a": 6, "b": 3, "c": 6, "d": 6, "e": 3}
    assert out.shape == (12, stage.output_dim) == (12, 24)
    parts = stage.split(out)
    assert {k: v.shape[1] for k, v in parts.items()} == stage.feature_dims
    assert torch.equal(torch.cat(list(parts.values()), dim=1), out)


SEQUENCE_IDS = {"target": [[1], [2]], "history": [[2, 1, 2], []], "user": [[8], [None]]}


class TestSequences:
    def test_values_and_gradients(self, kit):
        schema = SEQUENCES
        stage = EmbeddingStage(schema, lr=1.0, initializer=Constant(value=0.0))
        (batch,) = kit.plan_batches([kit.make_batch(schema, SEQUENCE_IDS, kit.ToyIndex())])
        pooled, found = stage(batch), stage.forward_sequences(batch)
        assert list(found) == ["history"]
        values, offsets = found["history"]
        assert (pooled.shape, values.shape, offsets.tolist()) == ((2, 8), (3, 4), [0, 3, 3])
        (pooled.sum() + (values * torch.tensor([[1.0], [2], [4]])).sum()).backward()
        stage.step(batch)
        group = batch.groups[0]  # gradients: id 1: 1 + 2, id 2: 1 + 1 + 4, both users 1
        state = stage.lookup_rows(
            0, *(getattr(group, f).numpy() for f in ("locations", "unique_ids", "unique_tables", "missing"))
        )[:, 4]
        by_id = dict(zip(group.unique_ids.tolist(), state.tolist(), strict=True))
        assert by_id == {1: 9.0, 2: 36.0, 8: 1.0, 0: 1.0}

    def test_order_of_the_two_forwards_does_not_matter(self, kit):
        results = []
        for swap in (False, True):
            stage = EmbeddingStage(SEQUENCES)
            (batch,) = kit.plan_batches([kit.make_batch(SEQUENCES, SEQUENCE_IDS, kit.ToyIndex())])
            calls = [stage.forward, lambda b, s=stage: s.forward_sequences(b)["history"][0]]
            torch.cat([call(batch).reshape(-1) for call in (calls[::-1] if swap else calls)]).pow(2).sum().backward()
            stage.step(batch)
            results.append(bits(stage))
        assert results[0] == results[1]

    def test_without_pooled_features_forward_is_empty(self, kit):
        schema = Schema(sparse=(Sparse(name="h", multi_hot=True, pooling="none"),))
        stage = EmbeddingStage(schema)
        batch = kit.make_batch(schema, {"h": [[1], [2, 3]]}, kit.ToyIndex())
        assert stage(batch).shape == (2, 0)
        assert stage.forward_sequences(batch)["h"][0].shape == (3, 16)


@pytest.mark.parametrize("mode", ["direct", "arena"])
class TestEvaluation:
    def test_it_reads_the_newest_and_changes_nothing(self, kit, stream, mode):  # invariant 12
        ids, batches, index = stream
        stage, other = (EmbeddingStage(MIXED, lr=0.1, mode=mode) for _ in range(2))
        for t, batch in enumerate(kit.plan_batches(batches[:10], window=1, spare=5)):
            for one in (stage, other):
                train(one, [batch], seed=t)
            seen = kit.make_batch(MIXED, ids[t], index, num_rows=batch.num_rows, insert=False)
            once = stage(seen)
            stage.eval()
            assert torch.equal(stage(batch), once)  # a planned batch, with the module in evaluation mode
            stage.train()
            rows = [
                stage.lookup_rows(
                    g,
                    *(getattr(group, f).numpy() for f in ("locations", "unique_ids", "unique_tables", "missing")),
                )
                for g, group in enumerate(batch.groups)
            ]
            assert all(np.isfinite(r).all() for r in rows)
            assert not once.requires_grad
        assert bits(stage) == bits(other)

    def test_unknown_keys_read_as_they_would_start(self, kit, mode):  # P30
        index = kit.ToyIndex()
        stage = EmbeddingStage(ONE, mode=mode, seed=3)
        train(stage, kit.plan_batches([kit.make_batch(ONE, {"a": [[1]]}, index)]))
        before = bits(stage)
        unseen = kit.make_batch(ONE, {"a": [[7], [None], [1]]}, index, insert=False)
        out = stage(unseen)
        uid = ONE.tables[0].uid
        expected = stage.initial_rows(
            2, np.array([7, 0], np.uint64), np.full(2, uid, np.uint32), np.array([False, True])
        )
        assert out[:2].tolist() == expected.tolist()
        assert bits(stage) == before
        assert len(index.places) == 1

    def test_between_forward_and_step_it_does_not_disturb(self, kit, mode):
        index = kit.ToyIndex()
        batch = kit.make_batch(ONE, {"a": [[1], [2]]}, index)
        (planned,) = kit.plan_batches([batch])
        stage = EmbeddingStage(ONE, mode=mode, lr=1.0, initializer=Constant(value=0))
        out = stage(planned)
        assert stage(batch).tolist() == [[0, 0], [0, 0]]
        out.sum().backward()
        stage.step(planned)
        assert stage(batch).tolist() == [[-1, -1], [-1, -1]]


@pytest.mark.parametrize("mode", ["direct", "arena"])
class TestStep:
    @pytest.fixture
    def batches(self, kit):
        index = kit.ToyIndex()
        ids = ([[1], [2]], [[2], [3]], [[1], [4]], [[2], [2]])
        return kit.plan_batches([kit.make_batch(ONE, {"a": i}, index) for i in ids])

    def test_only_the_last_training_forward_can_be_stepped(self, batches, mode):
        stage = EmbeddingStage(ONE, mode=mode)
        with pytest.raises(RuntimeError, match="not the last training forward"):
            stage.step(batches[0])
        stage(batches[0])
        stage(batches[1]).sum().backward()
        with pytest.raises(RuntimeError, match="not the last training forward"):
            stage.step(batches[0])
        stage.step(batches[1])
        with pytest.raises(RuntimeError, match="stepped already"):
            stage.step(batches[1])
        stage.eval()
        stage(batches[2])
        with pytest.raises(RuntimeError, match="not the last training forward"):
            stage.step(batches[2])

    def test_a_batch_that_is_scored_alone_has_no_step(self, batches, mode):
        stage, scored = EmbeddingStage(ONE, mode=mode), replace(batches[0], plan=None)
        assert not stage(scored).requires_grad
        with pytest.raises(RuntimeError, match=r"step\(\) of a batch without a plan.*train=True"):
            stage.step(scored)
        stage(batches[0]).sum().backward()
        stage.step(batches[0])

    def test_groups_without_gradient_are_not_touched(self, kit, mode):
        ids = {"target": [[1]], "history": [[2, 3]], "user": [[1]]}
        schema = replace(SEQUENCES, tables=(Table(name="items", dim=4), Table(name="user", dim=2)))
        (batch,) = kit.plan_batches([kit.make_batch(schema, ids, kit.ToyIndex())])
        stage = EmbeddingStage(schema, mode=mode)
        stage.forward_sequences(batch)["history"][0].sum().backward()
        stage.step(batch)
        counts = {g.dim: stage.state_arrays()[f"locations_{g.ordinal}"].size for g in schema.groups}
        assert counts == {4: 3, 2: 0}

    def test_a_step_without_backward_is_refused(self, kit, batches, mode):
        stage = EmbeddingStage(ONE, mode=mode, lr=1.0, initializer=Constant(value=0))
        out = stage(batches[0])
        with pytest.raises(RuntimeError, match=r"call loss\.backward\(\) .* or stage\.skip\(batch\)"):
            stage.step(batches[0])
        assert stage.state_arrays()["locations_0"].tolist() == []
        out.sum().backward()  # and may still come
        stage.step(batches[0])
        assert stage.state_arrays()["rows_0"].tolist() == [[-1, -1]] * 2
        stage(batches[1])
        stage.skip(batches[1])  # or the batch is passed by
        train(stage, batches[2:3])

    def test_a_batch_without_ids_needs_no_backward(self, kit, mode):
        (batch,) = kit.plan_batches([kit.make_batch(ONE, {"a": []}, kit.ToyIndex(), num_rows=0)])
        stage = EmbeddingStage(ONE, mode=mode)
        stage(batch)
        stage.step(batch)

    def test_several_forwards_of_a_batch_add_up(self, batches, mode):
        stage = EmbeddingStage(ONE, mode=mode, lr=1.0, initializer=Constant(value=0))
        stage(batches[0]).sum().backward()
        (stage(batches[0]).sum() * 2).backward()
        stage.step(batches[0])
        assert stage.state_arrays()["rows_0"].tolist() == [[-3, -3]] * 2

    def test_the_last_batch_may_be_trained_on_again(self, batches, mode):
        stage = EmbeddingStage(ONE, mode=mode, lr=1.0, initializer=Constant(value=0))
        for batch in (batches[0], batches[1], batches[1]):
            stage(batch).sum().backward()
            stage.step(batch)
        assert stage.state_arrays()["rows_0"].tolist() == [[-1, -1], [-3, -3], [-2, -2]]

    def test_a_copy_of_the_batch_may_be_stepped(self, batches, mode):
        stage = EmbeddingStage(ONE, mode=mode)
        stage(batches[0].to("cpu")).sum().backward()
        stage.step(batches[0])
        assert len(stage.state_arrays()["locations_0"]) == 2

    def test_lr_of_the_step_is_the_present_one(self, batches, mode):
        stage = EmbeddingStage(ONE, mode=mode, lr=1.0, initializer=Constant(value=0))
        stage(batches[0]).sum().backward()
        stage.lr = 0.5
        stage.step(batches[0])
        assert stage.state_arrays()["rows_0"].tolist() == [[-0.5, -0.5]] * 2
        with pytest.raises(ValueError, match="lr=nan"):
            stage.lr = float("nan")

    def test_skipped_batches_are_not_trained_on(self, kit, batches, mode):
        results = []
        for other in ("direct", mode):
            stage = EmbeddingStage(ONE, mode=other)
            train(stage, batches[:1])
            stage.skip(batches[1])
            stage(batches[2])  # an evaluation loop or an exception: no step
            train(stage, batches[3:])
            results.append(bits(stage))
        assert results[0] == results[1]
        with pytest.raises(ValueError, match="without a plan"):
            stage.skip(replace(batches[0], plan=None))

    def test_skip_forgets_the_forward_before_it(self, batches, mode):
        stage = EmbeddingStage(ONE, mode=mode)
        stage(batches[0]).sum().backward()
        stage.skip(batches[1])
        with pytest.raises(RuntimeError, match="not the last training forward"):
            stage.step(batches[0])

    def test_gradients_that_were_clipped_stay_with_their_rows(self, kit, mode):
        index = kit.ToyIndex()
        batches = kit.plan_batches([kit.make_batch(ONE, {"a": ids}, index) for ids in ([[1], [2]], [[3], [4]])])
        stage = EmbeddingStage(ONE, mode=mode, lr=1.0, initializer=Constant(value=0))
        stage(batches[0]).sum().backward()
        stage.pending_leaves()  # as clipping does
        stage.skip(batches[1])  # both leave their slots to 3 and 4
        stage.optimizer().step()
        keys = [RowKeys.of(batches[b].groups[0]) for b in (0, 1)]
        assert [stage.read_vectors(0, k).tolist() for k in keys] == [[[-1, -1]] * 2, [[0, 0]] * 2]

    def test_a_thousand_forwards_without_a_step_keep_memory_flat(self, kit, mode):  # P65
        index = kit.ToyIndex()
        schema = replace(ONE, tables=(Table(name="a", dim=256),))
        ids = {"a": [[i] for i in range(64)]}
        batch = kit.make_batch(schema, ids, index)
        planned = kit.plan_batches([batch] * 1000, spare=0)
        stage = EmbeddingStage(schema, mode=mode)
        rss = []
        for t, one in enumerate(planned):
            stage(one)
            if t in (100, 999):
                gc.collect()
                rss.append(psutil.Process().memory_info().rss)
        assert rss[1] - rss[0] < 8 << 20  # 900 kept forwards would be 58 MB
        assert stage.stores[0].num_written == 0


class TestOrderOfPlans:
    @pytest.fixture
    def planned(self, kit):
        index = kit.ToyIndex()
        return kit.plan_batches([kit.make_batch(ONE, {"a": [[i], [i + 1]]}, index) for i in range(4)], window=1)

    def test_a_gap_is_an_error_that_says_skip(self, planned):
        stage = EmbeddingStage(ONE, mode="arena")
        stage(planned[0])
        with pytest.raises(PlanError, match=r"step 2 of run 1 came, but step 1 .* stage\.skip\(batch\)"):
            stage(planned[2])
        stage.skip(planned[1])
        stage(planned[2])
        with pytest.raises(PlanError, match="step 1 of run 1 comes again"):
            stage(planned[1])

    def test_a_batch_that_was_only_evaluated_is_a_gap(self, planned):
        stage = EmbeddingStage(ONE, mode="arena").eval()
        stage(planned[0])
        stage.train()
        with pytest.raises(PlanError, match=r"step 0 was not passed .* in training mode; .*skip.* if it was evaluated"):
            stage(planned[1])
        stage.skip(planned[0])
        stage(planned[1])

    @pytest.mark.parametrize(
        "empty",
        [
            lambda stage, batch: stage.load_state_dict(stage.state_dict()),
            lambda stage, batch: stage.forget_rows(0, batch.groups[0].locations.numpy()),
        ],
    )
    def test_a_run_whose_rows_were_taken_away_is_over(self, kit, planned, empty):
        stage = EmbeddingStage(ONE, mode="arena")
        train(stage, planned[:2])
        empty(stage, planned[0])
        for use in (stage, stage.skip, stage):
            with pytest.raises(PlanError, match=r"arenas were emptied in the middle of the run .*Iterate .* anew"):
                use(planned[2])
        empty(stage, planned[0])  # again
        with pytest.raises(PlanError, match="arenas were emptied"):
            stage(planned[2])
        rest = kit.plan_batches([replace(b, plan=None) for b in planned[2:]], run=2)
        with pytest.raises(PlanError, match="step 1 of run 2 came, but step 0"):
            stage(rest[1])
        train(stage, rest)

    @pytest.mark.parametrize("mode", ["direct", "arena"])
    def test_places_that_are_not_the_groups_are_refused_whole(self, kit, mode):
        schema = Schema(
            sparse=(Sparse(name="a"), Sparse(name="b")), tables=(Table(name="a", dim=2), Table(name="b", dim=3))
        )
        index = kit.ToyIndex()
        batches = [kit.make_batch(schema, {"a": [[i], [i + 1]], "b": [[i], [i]]}, index) for i in range(3)]
        results = []
        for refused in (False, True):
            planned = kit.plan_batches(batches, window=1)
            stage = EmbeddingStage(schema, mode=mode, lr=0.1)
            train(stage, planned[:1])
            stage(planned[1]).sum().backward()
            own, other = (group.locations.numpy() for group in planned[0].groups)
            bad = np.array([1 << 62, own[0]], np.uint64)
            for group, places, message in (
                (0, bad, r"location 0x4000000000000000 at position 0 is not in host memory"),
                (
                    0,
                    np.concatenate([own, other]),
                    r"is that of a row of group 1 \(b\), not of group 0 \(a\): index.remove",
                ),
                (1, own, r"is that of a row of group 0 \(a\), not of group 1 \(b\)"),
            ):
                if refused:
                    with pytest.raises(ValueError, match=message):
                        stage.forget_rows(group, places)
            assert stage.num_replaced == 0
            stage.step(planned[1])
            train(stage, planned[2:])
            results.append({name: array.tobytes() for name, array in stage.state_arrays().items()})
        assert results[0] == results[1]

    def test_a_run_begins_with_step_0(self, kit, planned):
        stage = EmbeddingStage(ONE, mode="arena")
        with pytest.raises(PlanError, match="step 1 of run 1 came, but step 0"):
            stage(planned[1])

    def test_capacity_bounds_the_plans(self, planned):
        stage = EmbeddingStage(ONE, mode="arena", capacity=2)
        with pytest.raises(PlanError, match=r"needs an arena of 3 rows, the stage was given capacity=2"):
            stage(planned[0])
        EmbeddingStage(ONE, mode="arena", capacity=3)(planned[0])

    def test_capacity_is_constant_within_a_run(self, planned):
        stage = EmbeddingStage(ONE, mode="arena")
        stage(planned[0])
        plan = planned[1].plan
        changed = replace(plan, groups=(replace(plan.groups[0], capacity=9),))
        with pytest.raises(PlanError, match="capacity changes from 3 to 9"):
            stage(replace(planned[1], plan=changed))

    def test_a_place_reused_by_another_key_starts_from_its_own_vector(self, kit):
        # key 2 is fetched ahead, never delivered, and undone; its place goes to key 3
        first, second = kit.ToyIndex(), kit.ToyIndex()
        one = [kit.make_batch(ONE, {"a": [[i]]}, first) for i in (1, 2)]
        two = [kit.make_batch(ONE, {"a": [[i]]}, second) for i in (1, 3)]
        assert one[1].groups[0].locations.tolist() == two[1].groups[0].locations.tolist()
        results = []
        for mode in ("direct", "arena"):
            stage = EmbeddingStage(ONE, mode=mode)
            train(stage, kit.plan_batches(one, window=1)[:1])
            train(stage, kit.plan_batches(two[1:], run=2))
            results.append(bits(stage))
        assert results[0] == results[1]


class TestRefusals:
    @pytest.mark.parametrize(
        "options",
        [
            {"mode": "gpu"}, {"capacity": 0}, {"capacity": [-1]}, {"lr": -1.0}, {"eps": 0.0}, {"seed": -1},
            {"wire": "fp8"},
        ],
    )  # fmt: skip
    def test_values_of_options(self, options):
        with pytest.raises(ValueError, match=f"{next(iter(options))}="):
            EmbeddingStage(ONE, **options)

    @pytest.mark.parametrize("mode", ["direct", "arena"])
    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("capacity", [True, 2.0, "12", b"1", [2.5], np.array([1, 2]), {3: 1}]),
            ("seed", [1.0, "1", True, None]),
            ("check_finite", [1, "no", None, np.True_]),
            ("lr", ["0.1", None, True, [0.1]]),
            ("eps", ["0.1", None, True]),
        ],
    )
    def test_types_of_options(self, name, values, mode):
        for value in values:
            with pytest.raises(TypeError, match=f"{name}="):
                EmbeddingStage(ONE, mode=mode, **{name: value})

    @pytest.mark.parametrize("mode", ["direct", "arena"])
    def test_one_capacity_a_group(self, mode):
        with pytest.raises(ValueError, match="3 capacities for 1 groups"):
            EmbeddingStage(ONE, capacity=[1, 2, 3], mode=mode)
        for capacity in (None, 3, np.int64(3), [3], (np.uint8(3),), [None]):
            EmbeddingStage(ONE, capacity=capacity, mode=mode)

    def test_numbers_of_numpy_are_taken(self):
        stage = EmbeddingStage(ONE, seed=np.int64(7), lr=np.float32(0.5), eps=np.float64(1e-3))
        assert (stage.seed, stage.lr, stage.eps) == (7, 0.5, 1e-3)
        assert {type(x) for x in (stage.lr, stage.eps)} == {float}
        assert type(stage.seed) is int

    @pytest.mark.parametrize("mode", ["direct", "arena"])
    def test_values_that_are_not_finite_name_id_and_row(self, kit, mode):
        index = kit.ToyIndex()
        stage = EmbeddingStage(ONE, mode=mode, check_finite=True)
        ids = {"a": [[5], [6], [None], [6]]}
        batches = kit.plan_batches([kit.make_batch(ONE, ids, index, first_row=70)] * 2)
        factor = torch.ones(4, 2)
        factor[3, 1] = float("nan")
        (stage(batches[0]) * factor).sum().backward()
        with pytest.raises(
            FloatingPointError, match=r"gradient of id 6 .* feature 'a', batch row 1, row 71 of part-0\.tsv"
        ):
            stage.step(batches[0])
        assert stage.state_arrays()["locations_0"].tolist() == []
        factor[3, 1], factor[2, 0] = 1, float("inf")
        careless = EmbeddingStage(ONE, mode=mode)
        (careless(batches[0]) * factor).sum().backward()
        careless.step(batches[0])
        careless.check_finite = True
        with pytest.raises(FloatingPointError, match=r"vector of the missing value .* row 72 of part-0\.tsv"):
            careless(batches[1])


class TestCopies:
    @pytest.mark.parametrize(
        "use",
        [
            copy.deepcopy,
            copy.copy,
            pickle.dumps,
            lambda stage: torch.save(torch.nn.Sequential(stage), io.BytesIO()),
            lambda stage: torch.optim.swa_utils.AveragedModel(torch.nn.Sequential(stage)),
        ],
    )
    def test_they_are_refused_with_what_to_do(self, use):
        with pytest.raises(TypeError, match=r"neither copied nor pickled.*headrace\.save_run.*AveragedModel"):
            use(EmbeddingStage(ONE))

    @pytest.mark.parametrize("use", [copy.deepcopy, copy.copy, pickle.dumps])
    def test_a_second_optimizer_would_drive_the_same_stage(self, use):
        stage = EmbeddingStage(ONE)
        with pytest.raises(TypeError, match=r"belongs to its stage.*stage\.optimizer\(\)\.state_dict\(\)"):
            use(stage.optimizer())


def test_freezing_as_torch_does_says_how_it_is_done_here():
    stage = EmbeddingStage(ONE)
    assert stage.requires_grad_() is stage
    with pytest.raises(RuntimeError, match=r"no torch parameters.*frozen=.*stage\.eval\(\)"):
        stage.requires_grad_(False)


class TestState:
    def test_a_stage_for_scoring_takes_the_rows_of_training(self, kit):
        labelled = replace(ONE, labels=(Label(name="y"),))
        trained, scoring = EmbeddingStage(labelled, lr=0.5), EmbeddingStage(ONE)
        batch = kit.make_batch(labelled, {"a": [[5]]}, kit.ToyIndex())
        train(trained, kit.plan_batches([batch]))
        scoring.load_state_dict(trained.state_dict())
        assert scoring.state_arrays()["rows_0"].tolist() == trained.state_arrays()["rows_0"].tolist()
        assert torch.equal(scoring.eval()(batch), trained.eval()(batch))

    def test_a_state_from_before_is_loaded_where_the_whole_schema_is_the_same(self):
        state = EmbeddingStage(ONE).state_dict()
        del state["options"]["schema_of_rows"]
        EmbeddingStage(ONE).load_state_dict(state)
        with pytest.raises(ValueError, match="another schema"):
            EmbeddingStage(replace(ONE, labels=(Label(name="y"),))).load_state_dict(state)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: torch.nn.Linear(2, 1).state_dict(), "^not the state of an EmbeddingStage"),
            (
                lambda: EmbeddingStage(ONE, seed=3).state_dict(),
                "^the state is of a stage with seed=3, this one has seed=0$",
            ),
            (lambda: EmbeddingStage(MIXED).state_dict(), "^the state is of a stage with another schema [^;]*$"),
            (lambda: EmbeddingStage(MIXED, seed=3).state_dict(), "another schema .*; seed=3, this one"),
        ],
    )
    def test_the_state_of_another_stage_is_told_in_words(self, make, message):
        with pytest.raises(ValueError, match=message):
            EmbeddingStage(ONE).load_state_dict(make())

    def test_a_state_dict_warns_once_that_the_rows_are_not_in_it(self):
        model = torch.nn.Sequential(EmbeddingStage(ONE), torch.nn.Linear(2, 1))
        with pytest.warns(UserWarning, match=r"rows are not in state_dict\(\); save the run with headrace\.save_run"):
            state = model.state_dict()
        assert list(state) == ["1.weight", "1.bias"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.load_state_dict(model.state_dict())

    def test_who_saves_the_rows_is_not_warned(self):
        stage = EmbeddingStage(ONE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with stage.rows_saved_elsewhere():
                torch.nn.Sequential(stage).state_dict()
        with pytest.warns(UserWarning, match="rows are not in"):  # others are, all the same
            torch.nn.Sequential(stage).state_dict()

    def test_round_trip_into_either_mode(self, kit, stream):
        planned = kit.plan_batches(stream[1], window=1)
        whole = EmbeddingStage(MIXED, mode="direct")
        train(whole, planned[:20])
        saved = whole.state_arrays()
        rest = kit.plan_batches(stream[1][20:], run=3, window=1)
        train(whole, rest, seed=4)
        for mode in ("direct", "arena"):
            resumed = EmbeddingStage(MIXED, mode=mode)
            train(resumed, planned[:3])  # to be forgotten
            resumed.load_state_arrays(saved)
            train(resumed, rest, seed=4)
            assert bits(resumed) == bits(whole)

    def test_arrays_are_copies_of_committed_rows(self, kit):
        stage = EmbeddingStage(ONE)
        (batch,) = kit.plan_batches([kit.make_batch(ONE, {"a": [[1], [2]]}, kit.ToyIndex())])
        train(stage, [batch])
        one = batch.groups[0].locations.numpy()[1:]
        state = stage.state_arrays(one)
        assert state["locations_0"].tolist() == one.tolist()
        assert state["rows_0"].shape == (1, 2)
        before = bits(stage)
        state["rows_0"][:] = 99
        assert bits(stage) == before

    def test_other_states_are_refused_and_change_nothing(self, kit):
        stage = EmbeddingStage(ONE)
        train(stage, kit.plan_batches([kit.make_batch(ONE, {"a": [[1]]}, kit.ToyIndex())]))
        before, state = bits(stage), stage.state_arrays()
        for wrong in (
            {},
            {**state, "rows_1": state["rows_0"]},
            {**state, "rows_0": np.zeros((1, 3), np.float32)},
            {**state, "rows_0": np.zeros((2, 2), np.float32)},
        ):
            with pytest.raises(ValueError, match="rows of"):
                stage.load_state_arrays(wrong)
        assert bits(stage) == before


def test_the_number_of_torch_threads_changes_no_bit(kit, stream):
    results = []
    threads = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            stage = EmbeddingStage(MIXED)
            train(stage, kit.plan_batches(stream[1]))
            results.append(bits(stage))
    finally:
        torch.set_num_threads(threads)
    assert results[0] == results[1]


@pytest.fixture
def flushing():
    """Call it, and this thread takes denormal numbers for zero until the test's end; False: no processor for it."""
    yield lambda: torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)


def test_the_number_of_threads_changes_no_bit_of_denormal_numbers(kit, flushing):
    """Squares of 1e-21 are zero from the second step on, in threads that were started before, too."""
    schema = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=8),))
    index = kit.ToyIndex()
    batches = [kit.make_batch(schema, {"a": [[first + i] for i in range(2000)]}, index) for first in (0, 2000)]
    results = []
    for num_threads in (1, 2, 4):
        stage = EmbeddingStage(schema, lr=0.1, num_threads=num_threads)
        for batch, size in zip(kit.plan_batches(batches), (1.0, 1e-21), strict=True):
            if size < 1 and not flushing():
                pytest.skip("the processor does not flush denormal numbers")
            out = stage(batch)
            out.backward(torch.full_like(out, size))
            stage.step(batch)
        torch.set_flush_denormal(False)
        state = stage.state_arrays()["rows_0"][:, 8]
        assert np.count_nonzero(state) == 2000  # those of the first step
        results.append(bits(stage))
    assert results[0] == results[1] == results[2]


class TestGradientsOfOtherForms:
    @pytest.mark.parametrize(
        "form",
        [
            lambda g: torch.complex(torch.zeros_like(g), -g).conj().imag,  # to be negated when it is read
            lambda g: g.to_sparse(),
            lambda g: g.double(),
            lambda g: g.t().contiguous().t(),
            lambda g: torch.cat([g, g], 1)[:, : g.shape[1]],
        ],
    )
    def test_they_are_what_plain_ones_are(self, kit, form):
        index = kit.ToyIndex()
        ids = {"target": [[1], [2]], "history": [[1, 3], [2]], "user": [[5], [5]]}
        batch = kit.plan_batches([kit.make_batch(SEQUENCES, ids, index)])[0]
        found = []
        for change in (lambda g: g, form):
            stage = EmbeddingStage(SEQUENCES, lr=0.5, initializer=Constant(value=0.25))
            pooled, (values, _) = stage(batch), stage.forward_sequences(batch)["history"]
            pooled.backward(change(torch.arange(16.0).reshape(2, 8)))
            values.backward(change(torch.arange(12.0).reshape(3, 4)))
            stage.step(batch)
            found.append({name: array.tobytes() for name, array in stage.state_arrays().items()})
        assert found[0] == found[1]


class TestTheSameBatchOnceMore:
    """A forward of the batch that went forward last gives the rows that were found for it."""

    @pytest.fixture
    def batch(self, kit):
        schema = Schema(
            sparse=(Sparse(name="a"), Sparse(name="b")),
            tables=(Table(name="a", dim=2, optimizer="sgd"), Table(name="b", dim=3, optimizer="sgd")),
        )
        ids = {"a": [[1], [2]], "b": [[1], [2]]}
        return kit.plan_batches([kit.make_batch(schema, ids, kit.ToyIndex())])[0]

    @pytest.mark.parametrize("mode", ["direct", "arena"])
    def test_copies_with_other_labels_are_the_same(self, batch, mode):
        stage = EmbeddingStage(batch.schema, lr=1.0, mode=mode)
        before = [stage.lookup_rows(g, *RowKeys.of(batch.groups[g])) for g in range(2)]
        for one in (batch, replace(batch, labels=torch.ones(2)), replace(batch, groups=tuple(batch.groups))):
            stage(one).sum().backward()
        stage.step(batch)
        for g in range(2):
            after = stage.lookup_rows(g, *RowKeys.of(batch.groups[g]))
            np.testing.assert_allclose(before[g] - after, 3.0, rtol=1e-5)

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            (lambda b: {"groups": b.groups[:1]}, ValueError, "a batch of 1 groups for a stage of 2"),
            (lambda b: {"dense": None}, TypeError, "batch.dense"),
            (lambda b: {"schema": ONE}, ValueError, "another schema than the stage's"),
        ],
    )
    def test_what_is_no_batch_is_refused_as_ever(self, batch, change, error, message):
        stage = EmbeddingStage(batch.schema, lr=1.0)
        stage(batch).sum().backward()
        with pytest.raises(error, match=message):
            stage(replace(batch, **change(batch)))
        stage.step(batch)


class TestCompiler:
    def test_a_compiled_model_trains_as_it_does_otherwise(self, kit):
        index = kit.ToyIndex()
        made = [kit.make_batch(ONE, {"a": [[1], [2 + t], [3]]}, index) for t in range(4)]
        found = []
        for compiled in (False, True):
            model = torch.nn.Sequential(EmbeddingStage(ONE, mode="arena", lr=0.5), torch.nn.Linear(2, 1, bias=False))
            torch.nn.init.constant_(model[1].weight, 0.5)
            run = torch.compile(model, backend="eager") if compiled else model
            for batch in kit.plan_batches(made, window=1, run=1 + compiled):
                run(batch).square().sum().backward()
                model[0].step(batch)
            found.append(model[0].state_arrays()["rows_0"].tobytes())
        assert found[0] == found[1]


class TestStepsOfBatchesThatWereOnlyEvaluated:
    @pytest.fixture
    def planned(self, kit):
        index = kit.ToyIndex()
        return kit.plan_batches([kit.make_batch(ONE, {"a": [[i], [i + 1]]}, index) for i in range(4)])

    @pytest.mark.parametrize("mode", ["direct", "arena"])
    @pytest.mark.parametrize("has_trained", [False, True])
    def test_a_loop_in_evaluation_mode_is_told_once(self, planned, mode, has_trained):
        stage = EmbeddingStage(ONE, mode=mode)
        if has_trained:
            stage(planned[0]).sum().backward()
            stage.step(planned[0])
        stage.eval()

        def steps():
            for batch in planned * 8:
                stage(batch).sum()
                stage.optimizer().step()

        with pytest.warns(UserWarning, match=r"no gradient .* evaluation mode; call model.train\(\)") as told:
            steps()
        assert len(told) == 1
        assert told[0].filename == __file__
        assert stage.num_steps == has_trained

    def test_a_loop_over_batches_without_plans(self, planned):
        stage = EmbeddingStage(ONE)
        stage(replace(planned[0], plan=None))
        with pytest.warns(UserWarning, match=r"has no plan, and was scored; .* DataLoader\(..., train=True\)"):
            stage.optimizer().step()

    def test_steps_beside_an_evaluation_are_nothing_to_tell_of(self, planned):
        stage = EmbeddingStage(ONE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stage.optimizer().step()  # before anything
            with torch.no_grad():
                stage.eval()(planned[0])
            stage.optimizer().step()
            stage.train()
            stage(planned[0]).sum().backward()
            stage.eval()(planned[1])
            stage.train().optimizer().step()  # of the gradients from before it
            assert stage.num_steps == 1
            stage(planned[1])
            stage.optimizer().step()  # without backward: see skip
            for batch in planned[2:]:
                stage(batch).sum().backward()
                stage.step(batch)
                stage.eval()(batch)
                stage.train().optimizer().step()  # as of the rest of an accumulation, which was none
