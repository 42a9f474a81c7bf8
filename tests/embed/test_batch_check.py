"""Batches that the stage refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headrace.embed.batch_check import check_batch
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table

SCHEMA = Schema(
    sparse=(Sparse(name="a", multi_hot=True), Sparse(name="b", multi_hot=True)),
    tables=(Table(name="a", dim=2), Table(name="b", dim=2)),
)
A, B = SCHEMA.sparse
OTHERS = {
    "features": Schema(sparse=(A,), tables=SCHEMA.tables[:1]),
    "dims": replace(SCHEMA, tables=(Table(name="a", dim=2), Table(name="b", dim=4))),
    "optimizer": replace(SCHEMA, tables=tuple(replace(t, optimizer="sgd") for t in SCHEMA.tables)),
    "tables": replace(SCHEMA, sparse=(A, replace(B, table="a")), tables=SCHEMA.tables[:1]),
    "pooling": replace(SCHEMA, sparse=(A, replace(B, pooling="mean"))),
    "order": replace(SCHEMA, sparse=(B, A)),
}


def batch_of(kit, schema):
    return kit.make_batch(schema, {s.name: [[1], [2]] for s in schema.sparse}, kit.ToyIndex())


def test_an_equal_schema_is_enough(kit):
    check_batch(batch_of(kit, replace(SCHEMA)), SCHEMA)


@pytest.mark.parametrize("what", sorted(OTHERS))
@pytest.mark.parametrize("method", ["forward", "skip"])
def test_another_schema_is_refused(kit, what, method):
    (batch,) = kit.plan_batches([batch_of(kit, OTHERS[what])])
    stage = EmbeddingStage(SCHEMA)
    with pytest.raises(ValueError, match=rf"a batch of another schema \(features {batch.feature_names[0]}"):
        getattr(stage, method)(batch)
    assert stage.stores[0].num_written == 0


def test_a_batch_on_another_device_is_refused(kit):
    with pytest.raises(ValueError, match="the ids of the batch are on meta, and the stage works on the host"):
        EmbeddingStage(SCHEMA)(batch_of(kit, SCHEMA).to(torch.device("meta")))


def test_a_plan_of_other_groups_is_refused(kit):
    (batch,) = kit.plan_batches([batch_of(kit, SCHEMA)])
    with pytest.raises(ValueError, match="a plan of 0 groups for a stage of 1"):
        check_batch(replace(batch, plan=replace(batch.plan, groups=())), SCHEMA)
