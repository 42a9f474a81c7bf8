"""Batches that the stage refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.embed.arena import PlanError
from headrace.embed.batch_check import check_batch
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Label, Schema, Sparse, Table
from headrace.formats.schema_difference import differences
from headrace.indexer.indexed import ABSENT

SCHEMA = Schema(
    sparse=(Sparse(name="a", multi_hot=True), Sparse(name="b", multi_hot=True)),
    tables=(Table(name="a", dim=2), Table(name="b", dim=2)),
)
A, B = SCHEMA.sparse
FIELDS = (
    "query_ids", "lengths", "offsets", "weights", "unique_ids", "unique_tables", "missing", "locations", "positions",
    "position_offsets", "slots",
)  # fmt: skip
OTHERS = {
    "features": Schema(sparse=(A,), tables=SCHEMA.tables[:1]),
    "dims": replace(SCHEMA, tables=(Table(name="a", dim=2), Table(name="b", dim=4))),
    "optimizer": replace(SCHEMA, tables=tuple(replace(t, optimizer="sgd") for t in SCHEMA.tables)),
    "tables": replace(SCHEMA, sparse=(A, replace(B, table="a")), tables=SCHEMA.tables[:1]),
    "pooling": replace(SCHEMA, sparse=(A, replace(B, pooling="mean"))),
    "order": replace(SCHEMA, sparse=(B, A)),
}
DIFFERENCES = {
    "features": "sparse: only in the stage 'b'; tables: only in the stage 'b'",
    "dims": "tables: 'b' dim 4 and 2",
    "optimizer": "tables: 'a' optimizer 'sgd' and 'rowwise_adagrad', 'b' optimizer",
    "tables": "sparse: 'b' table 'a' and 'b' .*; tables: only in the stage 'b'",
    "pooling": "sparse: 'b' pooling 'mean' and 'sum'",
    "order": "sparse: in another order; tables: in another order",
}


def batch_of(kit, schema):
    return kit.make_batch(schema, {s.name: [[1], [2]] for s in schema.sparse}, kit.ToyIndex())


def test_an_equal_schema_is_enough(kit):
    check_batch(batch_of(kit, replace(SCHEMA)), SCHEMA)


def test_weights_that_want_a_gradient_are_refused_with_what_to_do(kit):
    batch = batch_of(kit, SCHEMA)
    weights = torch.ones(len(batch.groups[0].query_ids), requires_grad=True)
    learned = replace(batch, groups=(replace(batch.groups[0], weights=weights), *batch.groups[1:]))
    with pytest.raises(ValueError, match=r"group 0: weights need a gradient.*pass weights\.detach\(\)"):
        EmbeddingStage(SCHEMA)(learned)


def test_labels_matter_in_training_only(kit):
    batch = batch_of(kit, replace(SCHEMA, labels=(Label(name="y"),)))
    assert EmbeddingStage(SCHEMA)(batch).shape == (2, 4)
    with pytest.raises(ValueError, match="another schema than the stage's: labels: only in the batch 'y'"):
        EmbeddingStage(SCHEMA)(kit.plan_batches([batch])[0])


def test_few_of_many_differences_are_named():
    many = [
        Schema(
            sparse=tuple(Sparse(name=f"f{i}") for i in range(9)), tables=[Table(name=f"f{i}", dim=d) for i in range(9)]
        )
        for d in (4, 8)
    ]
    expected = "tables: 'f0' dim 4 and 8, 'f1' dim 4 and 8, 'f2' dim 4 and 8 and 6 more (in the old and the new)"
    assert differences(*many, ("the old", "the new")) == expected


@pytest.mark.parametrize("what", sorted(OTHERS))
@pytest.mark.parametrize("method", ["forward", "skip"])
def test_another_schema_is_refused(kit, what, method):
    (batch,) = kit.plan_batches([batch_of(kit, OTHERS[what])])
    stage = EmbeddingStage(SCHEMA)
    with pytest.raises(ValueError, match=rf"a batch of another schema than the stage's: {DIFFERENCES[what]}"):
        getattr(stage, method)(batch)
    assert stage.stores[0].num_written == 0


def test_a_batch_on_another_device_is_refused(kit):
    with pytest.raises(ValueError, match="the ids of the batch are on meta, and the stage works on the host"):
        EmbeddingStage(SCHEMA)(batch_of(kit, SCHEMA).to(torch.device("meta")))


def test_a_plan_of_other_groups_is_refused(kit):
    (batch,) = kit.plan_batches([batch_of(kit, SCHEMA)])
    with pytest.raises(ValueError, match="a plan of 0 groups for a stage of 1"):
        check_batch(replace(batch, plan=replace(batch.plan, groups=())), SCHEMA)


def unchanged_after(stage, batch, good, error, message):
    """`batch` is refused, and nothing has changed: `good`, planned as step 0, trains as if it had never come."""
    with pytest.raises(error, match=message):
        stage(batch)
    assert stage.num_steps == stage.stores[0].num_written == 0
    stage(good).sum().backward()
    stage.step(good)
    assert stage.num_steps == 1


def with_group(batch, **changes):
    return replace(batch, groups=(replace(batch.groups[0], **changes),))


@pytest.mark.parametrize("mode", ["direct", "arena"])
class TestBatchesThatAreDamaged:
    @pytest.fixture
    def good(self, kit):
        return kit.plan_batches([batch_of(kit, SCHEMA)])[0]

    def test_query_ids_out_of_range(self, good, mode):
        for bad in (-1, good.groups[0].num_unique, 2**62):
            ids = good.groups[0].query_ids.clone()
            ids[2] = bad
            batch = with_group(good, query_ids=ids)
            unchanged_after(EmbeddingStage(SCHEMA, mode=mode), batch, good, IndexError, f"query id {bad} at position 2")

    def test_positions_of_sequences_out_of_range(self, kit, mode):
        schema = replace(SCHEMA, sparse=tuple(replace(s, pooling="none") for s in SCHEMA.sparse))
        good = kit.plan_batches([batch_of(kit, schema)])[0]
        positions = good.groups[0].positions.clone()
        positions[1] = len(positions)
        stage = EmbeddingStage(schema, mode=mode)
        with pytest.raises(IndexError, match=f"position {len(positions)} is outside {len(positions)} ids"):
            stage.forward_sequences(with_group(good, positions=positions))
        assert stage.forward_sequences(good).keys() == {s.name for s in schema.sparse}

    def test_a_row_of_another_table(self, good, mode):
        ids = good.groups[0].query_ids.clone()
        ids[3] = ids[0]  # feature b, a row of table a
        batch = with_group(good, query_ids=ids)
        unchanged_after(
            EmbeddingStage(SCHEMA, mode=mode), batch, good, ValueError, "position 3 is a row of another table"
        )

    def test_a_plan_of_another_number_of_rows(self, good, mode):
        part = good.plan.groups[0]
        plan = replace(good.plan, groups=(replace(part, slots=part.slots[:-1]),))
        unchanged_after(
            EmbeddingStage(SCHEMA, mode=mode),
            replace(good, plan=plan),
            good,
            ValueError,
            "a plan of 3 rows for a batch of 4",
        )

    def test_a_planned_batch_of_keys_without_rows(self, kit, good, mode):
        group = good.groups[0]
        locations = group.locations.numpy().copy()
        locations[1] = ABSENT
        batch = with_group(good, locations=torch.from_numpy(locations))
        unchanged_after(
            EmbeddingStage(SCHEMA, mode=mode), batch, good, ValueError, "id 2 of table 'a' of a planned batch"
        )

    @pytest.mark.parametrize("field", FIELDS)
    def test_fields_of_other_types_and_lengths(self, kit, good, mode, field):
        whole = getattr(good.groups[0], field)
        values = (torch.ones(4) if whole is None else whole).numpy()
        others = [values.astype(t) for t in (np.float64, np.int16, np.uint16) if values.dtype != t]
        others += [values[:-1], np.concatenate([values, values[:1]]), values.reshape(-1, 1)]
        refused = [torch.from_numpy(array.copy()) for array in others]
        refused.append(torch.from_numpy(np.stack([values] * 2, 1)[:, 0]))  # strided
        for stage in (EmbeddingStage(SCHEMA, mode=mode), EmbeddingStage(SCHEMA, mode=mode).eval()):
            for wrong in refused:
                with pytest.raises(ValueError, match=rf"group 0: ({field}|.* not .* \[\d+\] \((ids|unique rows))"):
                    stage(with_group(good, **{field: wrong}))
            for wrong in (values, values.tolist(), 3):
                with pytest.raises(TypeError, match=f"group 0: {field} is a tensor.*, as the loader gave it, not a "):
                    stage(with_group(good, **{field: wrong}))
            stage(good)

    def test_other_fields(self, good, mode):
        stage = EmbeddingStage(SCHEMA, mode=mode)
        part = good.plan.groups[0]
        for slots in (part.slots.astype(np.int32), part.slots.astype(float), part.slots.reshape(-1, 1)):
            plan = replace(good.plan, groups=(replace(part, slots=slots),))
            with pytest.raises(ValueError, match=r"group 0: slots of the plan are .*, not int64 \[4\]"):
                stage(replace(good, plan=plan))
        for name, wrong in (("dense", None), ("plan", {}), ("schema", {}), ("ranks", 3), ("groups", ({},))):
            with pytest.raises(TypeError, match=rf"(batch\.{name}|group 0) is .*, as the loader gave it, not a "):
                stage(replace(good, **{name: wrong}))
        for groups in ((), good.groups * 2):
            with pytest.raises(ValueError, match=f"a batch of {len(groups)} groups for a stage of 1"):
                stage(replace(good, groups=groups))
        stage(good).sum().backward()
        stage.step(good)

    def test_a_gradient_of_another_shape(self, good, mode):
        stage = EmbeddingStage(SCHEMA, mode=mode)
        with pytest.raises(RuntimeError, match="shape"):
            stage(good).backward(torch.ones(2, 3))
        with pytest.raises(RuntimeError, match="before backward"):
            stage.step(good)
        assert stage.num_steps == stage.stores[0].num_written == 0


def test_a_batch_of_a_run_that_is_over_is_refused_in_the_arena(kit):
    first, second = (kit.plan_batches([batch_of(kit, SCHEMA)] * 2, run=run) for run in (1, 2))
    stage = EmbeddingStage(SCHEMA, mode="arena")
    stage(first[0]).sum().backward()
    stage.step(first[0])
    stage(second[0])
    before = {name: array.tobytes() for name, array in stage.state_arrays().items()}
    for step, late in enumerate(first):
        for use in (stage, stage.skip):
            with pytest.raises(PlanError, match=f"step {step} of run 1 came after run 2 had begun: its plan is over"):
                use(late)
    assert stage.num_steps == 1
    assert {name: array.tobytes() for name, array in stage.state_arrays().items()} == before
    stage(second[0]).sum().backward()  # goes on where it was
    stage.step(second[0])
    assert stage.num_steps == 2
