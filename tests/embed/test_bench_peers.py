"""The peers of `headrace bench embed` do the step that they are measured for."""

from __future__ import annotations

import pytest
import torch

from headrace.embed.bench_peers import TorchEmbeddingBags, TorchRecFused

LR = 0.5
# two batches of two features and three bags, the second bag of the first feature empty
BATCHES = [
    [([0, 1, 1], [0, 2, 2]), ([2, 0, 2, 1], [0, 1, 3])],
    [([1, 0], [0, 0, 1]), ([0, 0], [0, 1, 2])],
]


def dense(batches):
    return [[(torch.tensor(ids), torch.tensor(offsets)) for ids, offsets in batch] for batch in batches]


def pooled(tables, batch):
    columns = []
    for table, (ids, offsets) in zip(tables, batch, strict=True):
        ends = [*offsets[1:], len(ids)]
        columns.append(torch.stack([table[ids[a:b]].sum(0) for a, b in zip(offsets, ends, strict=True)]))
    return torch.cat(columns, dim=1)


@pytest.mark.parametrize("peer", [TorchEmbeddingBags, TorchRecFused])
def test_a_step_is_sum_pooling_and_sgd(peer):
    if peer is TorchRecFused:
        pytest.importorskip("torchrec", reason="torchrec is not installed: make bench-peers runs this")
    made = peer(dense(BATCHES), [2, 3], 4, lr=LR)
    tables = [table.requires_grad_() for table in made.tables()]
    generator = torch.Generator().manual_seed(1)
    for i, batch in enumerate(BATCHES):
        grad = torch.randn(3, 8, generator=generator)
        out, expected = made.forward(i), pooled(tables, batch)
        torch.testing.assert_close(out, expected)
        made.backward(out, grad)
        expected.backward(grad)
        with torch.no_grad():
            for table in tables:
                table -= LR * table.grad
                table.grad = None
    for found, table in zip(made.tables(), tables, strict=True):
        torch.testing.assert_close(found, table.detach())
