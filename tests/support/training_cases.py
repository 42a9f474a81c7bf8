"""Random training runs: their schema, rows and options, and the chain of nodes that indexes and plans them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import torch
from hypothesis import strategies as st

from headrace import DIT, Batch, Index, PlanWindow, Prefetch, RowBlock, Source, SourceRange
from headrace.formats.schema import Label, Schema, Sparse, Table
from headrace.ingest.engine.node import Node
from tests.support.in_order import Ids, Weights

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")


@dataclass(frozen=True)
class Case:
    """One run. Feature f is (table, multi-hot, pooling), table t is (dim, optimizer); `accumulate` batches a step."""

    seed: int
    tables: tuple[tuple[int, str], ...]
    features: tuple[tuple[int, bool, str], ...]
    batch_sizes: tuple[int, ...]
    distinct_ids: int
    window: int
    spare: int
    hot_rows: int | str
    accumulate: int
    weighted: bool
    frozen: bool
    weight_decay: float
    mode: str
    threads: tuple[int, int, int]
    prefetch: bool
    epochs: int

    @cached_property
    def schema(self) -> Schema:
        used = {table for table, _, _ in self.features}
        sparse = tuple(
            Sparse(name=f"f{i}", table=f"t{table}", multi_hot=multi_hot, pooling=pooling, encoding="uint64")  # type: ignore[arg-type]
            for i, (table, multi_hot, pooling) in enumerate(self.features)
        )
        tables = tuple(
            Table(name=f"t{i}", dim=dim, optimizer=optimizer)  # type: ignore[arg-type]
            for i, (dim, optimizer) in enumerate(self.tables)
            if i in used
        )
        return Schema(labels=(Label(name="y"),), sparse=sparse, tables=tables)

    @property
    def frozen_tables(self) -> tuple[str, ...]:
        return (self.schema.tables[-1].name,) if self.frozen and len(self.schema.tables) > 1 else ()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cases small enough for hundreds of them to be run in seconds."""
    tables = draw(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(OPTIMIZERS)), min_size=1, max_size=3))
    feature = st.tuples(st.integers(0, len(tables) - 1), st.booleans(), st.sampled_from(("sum", "sum", "mean", "none")))
    features = draw(st.lists(feature, min_size=1, max_size=4))
    return Case(
        seed=draw(st.integers(0, 2**32 - 1)),
        tables=tuple(tables),
        features=tuple((t, multi_hot, pooling) for t, multi_hot, pooling in features),
        batch_sizes=tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=9))),
        distinct_ids=draw(st.sampled_from((2, 6, 25, 200))),
        window=draw(st.sampled_from((0, 1, 1, 2, 3, 20))),
        spare=draw(st.sampled_from((0, 0, 1, 2, 5, 1000))),
        hot_rows=draw(st.sampled_from((0, 1, 3, "auto"))),
        accumulate=draw(st.integers(1, 3)),
        weighted=draw(st.booleans()),
        frozen=draw(st.sampled_from((False, False, True))),
        weight_decay=draw(st.sampled_from((0.0, 0.0, 0.03))),
        mode=draw(st.sampled_from(("direct", "arena"))),
        threads=(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        prefetch=draw(st.booleans()),
        epochs=draw(st.integers(1, 2)),
    )


class Stream:
    """The rows of a case: ids and weights of each batch, row blocks, and the chain that plans them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(case.seed)
        self.ids = [self._ids(rng, rows) for rows in case.batch_sizes]
        mean_groups = {g.ordinal for g in case.schema.groups for f in g.features if case.features[f][2] == "mean"}
        self.weighted_groups = [
            g for g in case.schema.groups if case.weighted and g.ordinal not in mean_groups
        ]  # weights of means are refused
        self.weights = [self._weights(rng, ids) for ids in self.ids]
        self.capacity = max(1, *(self._rows_needed(ids) for ids in self.ids)) + case.spare

    def chain(self, index: DIT) -> Node[Batch]:
        case = self.case
        blocks = [self._block(t) for t in range(len(self.ids))]
        planned = PlanWindow(
            Index(blocks, case.schema, index),
            case.schema,
            window=case.window,
            capacity=self.capacity,
            hot_rows=case.hot_rows,  # type: ignore[arg-type]
            verify=True,
        )
        return Prefetch(planned, timeout_s=60.0) if case.prefetch else planned

    def batches(self, chain: Node[Batch]) -> Iterator[tuple[int, Batch]]:
        """(position, batch with its weights) of one epoch."""
        chain.reset()
        for t, batch in enumerate(chain):
            groups = list(batch.groups)
            for layout in self.weighted_groups:
                flat = [w for f in layout.features for bag in self.weights[t][f"f{f}"] for w in bag]
                groups[layout.ordinal] = replace(
                    groups[layout.ordinal], weights=torch.tensor(flat, dtype=torch.float32)
                )
            yield t, replace(batch, groups=tuple(groups))

    def _ids(self, rng: np.random.Generator, rows: int) -> Ids:
        spread = np.uint64(rng.integers(1, 2**63, dtype=np.uint64)) | np.uint64(1)
        ids: dict[str, list[list[int | None]]] = {}
        for i, (_, multi_hot, _) in enumerate(self.case.features):
            sizes = rng.integers(0, 5, rows) if multi_hot else np.ones(rows, np.int64)
            ranks = (self.case.distinct_ids * rng.random(int(sizes.sum())) ** 3).astype(np.uint64)  # skewed
            bits = ranks * spread if self.case.seed % 2 else ranks  # any 64 bits, or small ones
            flat = [None if rank == 1 else int(raw) for rank, raw in zip(ranks, bits, strict=True)]
            ends = np.cumsum(sizes).tolist()
            ids[f"f{i}"] = [flat[end - int(size) : end] for end, size in zip(ends, sizes, strict=True)]
        return ids

    def _weights(self, rng: np.random.Generator, ids: Ids) -> Weights:
        names = [f"f{f}" for g in self.weighted_groups for f in g.features]
        return {
            n: [rng.choice([0.0, 1.0, -2.5, 0.375], len(bag)).astype(np.float32).tolist() for bag in ids[n]]
            for n in names
        }

    def _rows_needed(self, ids: Ids) -> int:
        sizes = []
        for group in self.case.schema.groups:
            used = {(self.case.features[f][0], raw) for f in group.features for bag in ids[f"f{f}"] for raw in bag}
            sizes.append(len(used))
        return max(sizes)

    def _block(self, t: int) -> RowBlock:
        rows = self.case.batch_sizes[t]
        schema = self.case.schema.arrow_schema()
        columns = [pa.array(np.zeros(rows, np.float32))]
        for i, (_, multi_hot, _) in enumerate(self.case.features):
            bags = self.ids[t][f"f{i}"]
            columns.append(pa.array(bags if multi_hot else [bag[0] for bag in bags], schema.field(f"f{i}").type))
        ranges = (SourceRange(0, sum(self.case.batch_sizes[:t]), rows),) if rows else ()
        return RowBlock(pa.record_batch(columns, schema=schema), Source(("rows",), ranges))
