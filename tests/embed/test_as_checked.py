"""Batches that are changed in place between forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.embed.as_checked import AsChecked
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse

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
