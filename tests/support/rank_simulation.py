"""A random case of training over ranks that take turns, against a plain reference; all of it follows from the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

import headrace
from headrace.embed._optimizers_py import update_rows
from headrace.embed._threads import Threads
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.initializer import Uniform, initial_vectors
from headrace.embed.optimizers import UpdateRule
from headrace.embed.rank_exchange import RankExchange
from headrace.embed.stage_parts import make_parts
from headrace.embed.step_times import StepTimes
from headrace.formats.schema import optimizer_state_floats
from headrace.indexer.exchange.simulated import run_ranks
from headrace.ingest.nodes.index import index_tables
from headrace.ingest.nodes.index_ranks import IndexRanks

DIM = 2


@dataclass(frozen=True)
class Case:
    size: int
    window: int
    optimizer: str
    mode: str
    uneven: str
    hot_rows: int
    hot_every: int
    node_size: int
    steps: tuple[int, ...]  # trained of each epoch; the rest is broken off
    blocks: tuple[tuple[tuple[np.ndarray, np.ndarray], ...], ...]  # of each rank and step: ids [B, 2], targets [B]

    @property
    def length(self) -> int:
        """Steps that an epoch has."""
        lengths = [len(blocks) for blocks in self.blocks]
        return min(lengths) if self.uneven == "drop" else max(lengths)


def draw(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5))
    length = int(rng.choice([1, 1, 2, 3, 5, 9]))
    ids = int(rng.choice([4, 12, 60]))
    uneven = str(rng.choice(["short", "short", "pad", "drop"]))
    lengths = [length if rng.random() < 0.6 else int(rng.integers(0, length + 1)) for _ in range(size)]
    blocks = []
    for rank in range(size):
        rows = [int(rng.integers(0 if rng.random() < 0.3 else 1, 5)) for _ in range(lengths[rank])]
        drawn = [(ids * rng.random((n, 2)) ** 2.5).astype(np.int64) for n in rows]
        fresh = [rng.random((n, 2)) < 0.15 for n in rows]
        drawn = [np.where(f, 10**6 + 3 * t + d % 5, d) for t, (d, f) in enumerate(zip(drawn, fresh, strict=True))]
        blocks.append(tuple((d, rng.integers(-2, 3, len(d)).astype(np.float32)) for d in drawn))
    epochs = int(rng.integers(1, 3))
    return Case(
        size=size,
        window=int(rng.choice([0, 1, 2, 5, 20])),
        optimizer=str(rng.choice(["sgd", "rowwise_adagrad", "adagrad", "adam"])),
        mode=str(rng.choice(["direct", "arena"])),
        uneven=uneven,
        hot_rows=int(rng.choice([0, 2, 3, 8, 1000])),
        hot_every=int(rng.integers(1, 4)),
        node_size=int(rng.choice([n for n in (1, 2, 4) if size % n == 0])),
        steps=tuple(int(rng.integers(0, length + 1)) if rng.random() < 0.4 else length for _ in range(epochs)),
        blocks=tuple(blocks),
    )


def make_schema(optimizer: str) -> headrace.Schema:
    tables = tuple(headrace.Table(name=n, dim=DIM, optimizer=optimizer) for n in ("a", "b"))
    sparse = (headrace.Sparse(name="x", table="a"), headrace.Sparse(name="y", table="b"))
    return headrace.Schema(dense=(headrace.Dense(name="target", transform="identity"),), sparse=sparse, tables=tables)


def row_blocks(case: Case, rank: int, schema: headrace.Schema) -> list[headrace.RowBlock]:
    fields, first, out = schema.arrow_schema(labels=False), 0, []
    for ids, targets in case.blocks[rank]:
        columns = {"target": targets, "x": ids[:, 0], "y": ids[:, 1]}
        data = pa.record_batch([pa.array(columns[f.name]).cast(f.type) for f in fields], schema=fields)
        source = headrace.Source((f"rank {rank}",), (headrace.SourceRange(0, first, len(ids)),))
        out.append(headrace.RowBlock(data, source))
        first += len(ids)
    return out


def gradients(values: np.ndarray, query_ids: np.ndarray, targets: np.ndarray, num_rows: int) -> np.ndarray:
    """Of the mean over `num_rows` rows of log cosh(sum of a row's vectors - target): float32 [U, DIM].

    values [U, DIM], query_ids [2, B], targets [B].
    """
    error = np.tanh(values[query_ids].sum(axis=0) - targets[:, None]) / max(num_rows, 1)
    grad = np.zeros_like(values)
    for feature in query_ids:
        np.add.at(grad, feature, error.astype(np.float32))
    return grad


def rule(case: Case, step: int) -> UpdateRule:
    return UpdateRule(name=case.optimizer, lr=0.1, eps=1e-2, weight_decay=0.01, step=step)


def run(case: Case, seed: int) -> None:
    """AssertionError, or whatever goes wrong, unless the ranks' rows are those of the reference."""
    parts = run_ranks(case.size, lambda communicator: _rank(case, communicator), seed=seed, timeout_s=60.0)
    expected = reference(case)
    merged: dict = {}
    for part in parts:
        assert not merged.keys() & part.keys()
        merged |= part
    assert merged.keys() == expected.keys()
    for key, row in merged.items():
        np.testing.assert_allclose(row, expected[key], rtol=1e-5, atol=1e-6, err_msg=str(key))


def _rank(case: Case, communicator) -> dict:
    schema = make_schema(case.optimizer)
    store = ChunkStore(DIM, optimizer_state_floats(case.optimizer, DIM))
    times = StepTimes(moves_beside=False)
    _, residency = make_parts([store], torch.device("cpu"), "native", case.mode, None, Threads(1), times)
    exchange = RankExchange(
        communicator, [store], residency, schema=schema, frozen=np.empty(0, np.uint32), threads=None, check_every=1
    )
    index = headrace.DIT(index_tables(schema), num_shards=1, owner_rank=communicator.rank)
    options = {
        "uneven": case.uneven,
        "hot_rows": case.hot_rows,
        "hot_every": case.hot_every,
        "node_size": case.node_size,
    }
    rows = IndexRanks(
        row_blocks(case, communicator.rank, schema),
        schema,
        index,
        communicator,
        look_ahead=case.window > 0,
        **options,
    )
    loader = headrace.PlanWindow(rows, schema, window=case.window, capacity=1000, hot_rows=0, verify=True)
    done = 0
    for steps in case.steps:
        loader.reset()
        for batch in _first(loader, steps):
            done += 1
            _train(case, exchange, batch, done)
    loader.close()
    exchange.settle()
    residency.flush()
    found = index.rows_of_buckets()
    uids = np.array([t.uid for t in schema.tables], np.uint32)[found.tables]
    out = np.empty((len(found.ids), store.width), np.float32)
    store.read(found.locations, found.ids, uids, found.missing, out)
    communicator.barrier()
    return {(int(t), int(i)): row for t, i, row in zip(found.tables, found.ids, out, strict=True)}


def _first(loader, steps: int):
    for _ in range(steps):
        try:
            yield next(loader)
        except StopIteration:
            return


def _train(case: Case, exchange: RankExchange, batch: headrace.Batch, number: int) -> None:
    (group,) = batch.groups
    (source,) = exchange.enter(batch.ranks, batch.plan)
    values = np.empty((group.num_unique, DIM), np.float32)
    source.read(values)
    valid = slice(None) if batch.valid is None else batch.valid.numpy()
    targets = batch.dense.numpy()[valid, 0]
    query_ids = group.query_ids.numpy().reshape(2, -1) if len(group.query_ids) else np.empty((2, 0), np.int64)
    grad = gradients(values, query_ids, targets, len(targets))
    exchange.apply(batch.ranks, [grad], [rule(case, number)], batch.plan)


def reference(case: Case) -> dict:
    """Rows by (table ordinal, id) after the same global batches, in one place."""
    schema = make_schema(case.optimizer)
    width = DIM + optimizer_state_floats(case.optimizer, DIM)
    known: dict[tuple[int, int], np.ndarray] = {}
    done = 0
    for steps in case.steps:
        for t in range(min(steps, case.length)):
            done += 1
            parts = [blocks[t] for blocks in case.blocks if t < len(blocks)]
            ids, targets = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
            keys = [(f, int(i)) for f in range(2) for i in ids[:, f]]
            unique = list(dict.fromkeys(keys))
            for table, i in unique:
                if (table, i) not in known:
                    known[table, i] = np.zeros(width, np.float32)
                    word, uid = np.array([i], np.uint64), np.array([schema.tables[table].uid], np.uint32)
                    known[table, i][:DIM] = initial_vectors(Uniform(), 0, word, uid, np.zeros(1, bool), DIM)[0]
            if not unique:
                continue
            at = {key: n for n, key in enumerate(unique)}
            rows = np.stack([known[key] for key in unique])
            query_ids = np.array([at[key] for key in keys]).reshape(2, -1)
            grad = gradients(rows[:, :DIM].copy(), query_ids, targets, len(targets))
            update_rows(rule(case, done), rows, grad)
            for key, row in zip(unique, rows, strict=True):
                known[key] = row
    return known
