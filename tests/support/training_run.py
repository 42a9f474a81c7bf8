"""A random training run through index, window plans and stage, compared with the in-order tables after every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headrace import DIT, Batch, EmbeddingStage
from headrace.embed.initializer import Normal, Uniform
from headrace.ingest.nodes.index import index_tables
from headrace.ingest.step_plan import NEVER
from tests.support.in_order import InOrderTables, Key
from tests.support.training_cases import Case, Stream

KEY_FIELDS = ("locations", "unique_ids", "unique_tables", "missing")


class Run:
    """Two stages and the in-order tables side by side.

    ``stages[0]`` is read whole after every step, which writes its rows back; ``stages[1]``, with an arena, is left to
    itself until the end, so that nothing but its plans moves rows: its outputs show at each step what it gathered.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.stream = Stream(case)
        self.rng = np.random.default_rng([case.seed, 1])
        options: dict[str, Any] = {
            "lr": 0.1,
            "eps": 1e-6,
            "weight_decay": case.weight_decay,
            "betas": (0.8, 0.95),
            "seed": case.seed,
            "initializer": Normal(std=0.5) if case.seed % 3 else Uniform(),
            "frozen": case.frozen_tables,
        }
        self.tables = InOrderTables(case.schema, **options)
        self.stages = [
            EmbeddingStage(case.schema, **options, mode=mode, num_threads=threads, capacity=self.stream.capacity)  # type: ignore[arg-type]
            for mode, threads in ((case.mode, case.threads[0]), ("arena", case.threads[1]))
        ]
        self.known: dict[tuple[int, Key], int] = {}  # (group, key) -> location
        self.seen: Counter[str] = Counter()
        self.pending = 0  # batches since the last step

    def run(self) -> Counter[str]:
        """What happened in the run, for the test's own check that the cases are worth something."""
        with DIT(index_tables(self.case.schema), num_threads=self.case.threads[2]) as index:
            with self.stream.chain(index) as chain:
                for _ in range(self.case.epochs):
                    for t, batch in self.stream.batches(chain):
                        self._count(batch)
                        self._take(t, batch)
                    if self.pending:
                        self._step(None)
            for stage in self.stages:
                self._compare_rows(stage, "at the end")
        return self.seen

    def _take(self, t: int, batch: Batch) -> None:
        for group, layout in zip(batch.groups, self.case.schema.groups, strict=True):
            names = (getattr(group, f).numpy().tolist() for f in KEY_FIELDS)
            for location, raw, uid, missing in zip(*names, strict=True):
                self.known[layout.ordinal, (uid, missing, raw)] = location
        chance = self.rng.random()
        if chance < 0.1:
            for stage in self.stages:
                stage.skip(batch)
            self.seen["skipped"] += 1
            self.seen["skipped before a step"] += self.pending > 0
            return
        if chance > 0.8:
            self._evaluate(t, batch)
        self._train(t, batch)
        if self.pending >= self.case.accumulate:
            self._step(batch)

    def _train(self, t: int, batch: Batch) -> None:
        ids, weights = self.stream.ids[t], self.stream.weights[t]
        expected, of_sequences = self.tables.pooled(ids, weights), self.tables.sequences(ids)
        twice = not of_sequences and not self.pending and self.rng.random() < 0.2
        grads = [self._normal(expected.shape) for _ in range(1 + twice)]
        sequence_grads = {name: self._normal(values.shape) for name, values in of_sequences.items()}
        for stage in self.stages:
            found = stage.forward_sequences(batch)
            for grad in grads:
                out = stage(batch)
                _equal(out.detach().numpy(), expected, f"output of batch {t}")
                pairs = [(out, grad), *((found[name][0], g) for name, g in sequence_grads.items())]
                pairs = [(tensor, torch.from_numpy(g)) for tensor, g in pairs if tensor.requires_grad]
                if pairs:
                    torch.autograd.backward(*map(list, zip(*pairs, strict=True)))  # type: ignore[no-untyped-call]
            for name, values in of_sequences.items():
                _equal(found[name][0].detach().numpy(), values, f"sequence {name} of batch {t}")
        for grad in grads:
            self.tables.backward(ids, grad, sequence_grads, weights)
        self.pending += 1
        self.seen["twice"] += twice

    def _evaluate(self, t: int, batch: Batch) -> None:
        """Between steps, without a plan, and of a batch to come: nothing may change by it."""
        other = int(self.rng.integers(0, t + 1))
        expected = self.tables.pooled(self.stream.ids[t], self.stream.weights[t])
        for stage in self.stages[: 1 + (other == t)]:  # mostly not the second: it is read, and written back, by it
            stage.eval()
            _equal(stage(replace(batch, plan=None)).numpy(), expected, f"evaluation of batch {t}")
            stage.train()
        self.seen["evaluated"] += 1

    def _step(self, batch: Batch | None) -> None:
        if self.rng.random() < 0.08:
            for one in (*(stage.optimizer() for stage in self.stages), self.tables):
                one.zero_grad()
            self.seen["dropped"] += 1
        else:
            self.tables.lr = float(self.rng.choice([0.1, 0.01, 1.0]))
            self.tables.step()
            for stage in self.stages:
                stage.lr = self.tables.lr
                if batch is None:
                    stage.optimizer().step()
                else:
                    stage.step(batch)
                assert stage.num_steps == self.tables.num_steps
            self.seen["steps"] += 1
            self.seen["steps of several batches"] += self.pending > 1
        self.pending = 0
        self._compare_rows(self.stages[0], f"after step {self.tables.num_steps}")

    def _compare_rows(self, stage: EmbeddingStage, when: str) -> None:
        """Every row ever met, with its optimizer state."""
        for layout in self.case.schema.groups:
            keys = [key for group, key in self.known if group == layout.ordinal]
            if keys:
                locations = np.array([self.known[layout.ordinal, key] for key in keys], np.uint64)
                kinds = (np.uint32, np.bool_, np.uint64)
                uids, missing, ids = (np.array(c, kind) for c, kind in zip(zip(*keys, strict=True), kinds, strict=True))
                found = stage.lookup_rows(layout.ordinal, locations, ids, uids, missing)
                _equal(
                    found, np.stack([self.tables.row(key) for key in keys]), f"rows of layout {layout.ordinal} {when}"
                )

    def _normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Gradients of very different sizes, so that another order of a sum shows."""
        scale = self.rng.choice([1e-3, 1.0, 30.0, 0.0], (shape[0], 1))
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def _count(self, batch: Batch) -> None:
        plan = batch.plan
        assert plan is not None
        self.seen["batches"] += 1
        self.seen["empty batches"] += batch.num_rows == 0
        for part, group in zip(plan.groups, batch.groups, strict=True):
            self.seen["evicted"] += len(part.late.evict_slots) + len(part.ahead.evict_slots)
            self.seen["ahead"] += len(part.ahead.fetch_slots)
            self.seen["late"] += len(part.late.fetch_slots) if plan.step else 0
            self.seen["waits"] += int((part.late.fetch_wait != NEVER).sum() + (part.ahead.fetch_wait != NEVER).sum())
            self.seen["hot"] += int(part.hot.sum())
            self.seen["repeated"] += group.query_ids.numel() - group.num_unique


def _equal(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Same bits, signs of zeros included."""
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape, what
    if found.tobytes() != expected.tobytes():
        differ = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
        raise AssertionError(f"{what}: {len(differ)} of {found.size} values differ: {found} is not {expected}")
