"""Batches that are changed in place between forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.embed.as_checked import AsChecked
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table

SCHEMA = Schema(sparse=(Sparse(name="a", multi_hot=True), Sparse(name="s", multi_hot=True, pooling="none")))


@pytest.fixture
def batch(kit):
    rng, index = np.random.default_rng(0), kit.ToyIndex()
    ids = kit.random_ids(SCHEMA, 6, rng)
    weights = {name: [[1.5] * len(bag) for bag in bags] for name, bags in ids.items()}
    return kit.plan_batches([kit.make_batch(SCHEMA, ids, index, weights=weights)])[0]


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("field", ["query_ids", "offsets", "weights", "positions", "position_offsets"])
def test_neither_backward_nor_another_forward_reads_it(batch, field, kernels):
    stage = EmbeddingStage(SCHEMA, mode="arena", kernels=kernels)
    outputs = [stage(batch).sum(), stage.forward_sequences(batch)["s"][0].sum()]
    getattr(batch.groups[0], field)[1] = 10**12
    uses = [output.backward for output in outputs] + [lambda: stage(batch), lambda: stage.forward_sequences(batch)]
    for use in uses:
        with pytest.raises(RuntimeError, match=rf"^{field} of the batch was changed in place after stage\(batch\), "):
            use()
    assert not stage._pending.any


ROWS = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=2, optimizer="sgd"),))


@pytest.fixture
def two(kit):
    """Batches of ids 1, 2 and of 3, 4, and the keys of all."""
    index = kit.ToyIndex()
    made = [kit.make_batch(ROWS, {"a": ids}, index) for ids in ([[1], [2]], [[3], [4]])]
    return kit.plan_batches(made), index.keys(0)


def changed(stage, keys, before):
    """Raw ids of the rows that are others than `before`."""
    return sorted(keys[1][(stage.lookup_rows(0, *keys) != before).any(1)].tolist())


def overwrite(batch, other, field):
    getattr(batch.groups[0], field).copy_(getattr(other.groups[0], field))


@pytest.mark.parametrize("mode", ["direct", "arena"])
@pytest.mark.parametrize("field", ["locations", "unique_ids", "unique_tables", "missing"])
def test_a_step_does_not_go_by_rows_that_were_changed(two, mode, field):
    (first, second), keys = two
    stage = EmbeddingStage(ROWS, lr=1.0, mode=mode)
    before = stage.lookup_rows(0, *keys)
    stage(first).sum().backward()
    overwrite(first, second, field)
    for use in (lambda: stage.step(first), stage.optimizer().step, lambda: stage(second), lambda: stage.skip(second)):
        with pytest.raises(RuntimeError, match=rf"^{field} of the batch was changed in place after stage\(batch\), "):
            use()
    assert changed(stage, keys, before) == []
    stage.optimizer().zero_grad()
    stage(second).sum().backward()
    stage.step(second)
    assert changed(stage, keys, before) == [3, 4]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("mode", ["direct", "arena"])
def test_the_rows_of_batches_before_the_last_one_are_kept_apart_from_them(two, mode, together):
    """Whoever accumulates may use the memory of a batch again, once the next one has gone forward."""
    (first, second), keys = two
    stage = EmbeddingStage(ROWS, lr=1.0, mode=mode)
    before = stage.lookup_rows(0, *keys)
    if together:  # one backward of both
        (stage(first).sum() + stage(second).sum()).backward()
    else:
        stage(first).sum().backward()
        stage(second).sum().backward()
    for field in ("locations", "unique_ids", "unique_tables", "missing"):
        overwrite(first, second, field)
    stage.optimizer().step()
    assert changed(stage, keys, before) == [1, 2, 3, 4]


def test_a_batch_without_gradients_may_be_changed(two):
    (first, second), keys = two
    stage = EmbeddingStage(ROWS, lr=1.0)
    before = stage.lookup_rows(0, *keys)
    stage(first)
    overwrite(first, second, "locations")
    stage(second).sum().backward()
    stage.step(second)
    assert changed(stage, keys, before) == [3, 4]


def test_what_is_only_read_and_what_is_none_pass():
    tensors = {"ids": torch.arange(3), "weights": None}
    known = AsChecked(tensors)
    known.check()
    tensors["ids"].sum()
    tensors["ids"].numpy()[0] = 5  # not seen
    known.check()
    tensors["ids"].add_(1)
    with pytest.raises(RuntimeError, match="ids of the batch"):
        known.check()


def test_tensors_made_in_inference_mode_are_passed_over():
    with torch.inference_mode():
        ids = torch.arange(3)
    AsChecked({"ids": ids}).check()
