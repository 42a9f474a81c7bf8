"""A small training run, in one process or over ranks, and its parameters by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import headrace
from headrace.indexer.exchange.communicator import Communicator

DIM = 4


def make_schema(optimizer: str = "rowwise_adagrad", *, two_layouts: bool = False) -> headrace.Schema:
    if not two_layouts:
        return headrace.criteo_schema(dim=DIM, optimizer=optimizer)
    base = headrace.criteo_schema(dim=DIM, optimizer=optimizer)
    tables = tuple(
        headrace.Table(name=t.name, dim=DIM + 4 * (i % 2), optimizer=optimizer) for i, t in enumerate(base.tables)
    )
    return headrace.Schema(labels=base.labels, dense=base.dense, sparse=base.sparse, tables=tables)


def train(
    data: Any,
    communicator: Communicator | None,
    *,
    batch_size: int,
    steps: int = 50,
    epochs: int = 1,
    schema: headrace.Schema | None = None,
    stage_options: dict[str, Any] | None = None,
    clip: dict[str, float] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train up to `steps` steps an epoch; what is left of the epoch is broken off."""
    schema = schema or make_schema()
    # A larger eps: else a gradient that is all rounding, the sum of terms that cancel, makes a whole step of Adagrad.
    stage = headrace.EmbeddingStage(
        schema, lr=0.01, eps=1e-4, num_threads=1, communicator=communicator, **(stage_options or {})
    )
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(13 + stage.output_dim, 1)
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    sgd = torch.optim.SGD(head.parameters(), lr=0.01)
    options = {"window": 4, "timeout": 300, "capacity": 4000, **options}
    rows_seen: list[int] = []
    norms: list[float] = []
    planned = {"rows": 0, "gradients": 0}
    hot_steps: list[tuple[int, int]] = []  # (rows entering R, rows of R touched by any rank) of each step
    dims = tuple(group.dim for group in schema.groups)
    with headrace.DataLoader(data, batch_size, schema=schema, communicator=communicator, **options) as loader:
        for _ in range(epochs):
            for step, batch in enumerate(loader):
                rows_seen.append(batch.num_rows)
                sgd.zero_grad()
                logits = head(torch.cat([batch.dense, stage(batch)], dim=1)).squeeze(1)
                labels = batch.labels
                if batch.valid is not None:
                    logits, labels = logits[batch.valid], labels[batch.valid]
                torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
                if communicator is not None:
                    headrace.average_gradients(communicator, head.parameters(), batch)
                    hot = [group.hot for group in batch.ranks.now.groups if group.hot is not None]
                    hot_steps.append((sum(len(h.entering) for h in hot), sum(len(h.touched) for h in hot)))
                    planned["rows"] += batch.ranks.now.row_bytes_sent(dims)
                    planned["gradients"] += batch.ranks.now.gradient_bytes_sent(dims)
                if clip is not None:
                    norms.append(float(headrace.clip_grad_norm_(stage, head.parameters(), **clip)))
                sgd.step()
                stage.step(batch)
                if step + 1 == steps:
                    break
        rows = rows_by_key(schema, loader.index, stage)
        replicas = [] if communicator is None else [part.copy() for part in stage._exchange.hot.rows]
        handed_out = loader.rows_handed_out
        skipped = sum(node.skipped for node in loader.node_stats())
    dense = [p.detach().numpy().copy() for p in head.parameters()]
    return {
        "rows": rows,
        "dense": dense,
        "seen": rows_seen,
        "handed_out": handed_out,
        "planned": planned,
        "skipped": skipped,
        "replicas": replicas,
        "hot": hot_steps,
        "norms": norms,
        "bytes_sent": {} if communicator is None else {p: sum(n) for p, n in communicator.bytes_sent().items()},
        "r_changes": stage.stats()["r_changes"],
    }


def rows_by_key(schema, index, stage) -> dict[tuple[int, bool, int], Any]:
    """(table ordinal, missing, id) -> float32 [dim + state] of each row of this rank's index."""
    found = index.rows_of_buckets()
    group_of = {t: g.ordinal for g in schema.groups for t in g.tables}
    uids = np.array([t.uid for t in schema.tables], np.uint32)
    groups = np.array([group_of[t] for t in found.tables.tolist()], np.int64)
    out = {}
    for g in range(len(schema.groups)):
        at = np.flatnonzero(groups == g)
        rows = stage.lookup_rows(g, found.locations[at], found.ids[at], uids[found.tables[at]], found.missing[at])
        for i, row in zip(at.tolist(), rows, strict=True):
            out[int(found.tables[i]), bool(found.missing[i]), int(found.ids[i])] = row
    return out


def assert_equal_to_reference(parts: list[dict[str, Any]], reference: dict[str, Any], *, exact: bool = False) -> None:
    """The ranks' rows together are the reference's, each at one rank; the dense part is the same on all."""
    merged: dict[Any, Any] = {}
    for part in parts:
        assert not merged.keys() & part["rows"].keys()
        merged |= part["rows"]
    assert merged.keys() == reference["rows"].keys()
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-5, "atol": 1e-6}
    keys = list(merged)
    for width in {len(row) for row in merged.values()}:
        same = [k for k in keys if len(merged[k]) == width]
        got, expected = np.stack([merged[k] for k in same]), np.stack([reference["rows"][k] for k in same])
        np.testing.assert_allclose(got, expected, **tolerance)
    for part in parts:
        for mine, first, expected in zip(part["dense"], parts[0]["dense"], reference["dense"], strict=True):
            assert mine.tobytes() == first.tobytes()
            np.testing.assert_allclose(mine, expected, **tolerance)
