"""The part of a model that turns a batch's unique rows into features, and applies their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from headrace.embed.arrays import F32, U32, U64, Array, Bool
from headrace.embed.batch_check import check_batch
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.finite import check_finite
from headrace.embed.initializer import Initializer, Uniform, check_seed, initial_vectors
from headrace.embed.layout import feature_layout
from headrace.embed.optimizers import UpdateRule, check_eps, check_lr
from headrace.embed.pooling import Bags, bags_of, pool, sequence_ranges, sequence_values
from headrace.embed.residency import ArenaResidency, DirectResidency, Residency, arena_limits, read_rows
from headrace.formats.schema import Schema
from headrace.ingest.batch import Batch
from headrace.ingest.step_plan import StepPlan

Mode = Literal["direct", "arena"]


@dataclass(frozen=True)
class _Gathered:
    """The unique rows of one batch: `rows[g]` float32 [U_g, dim_g], leaves that collect gradients in training."""

    batch: Batch
    bags: tuple[Bags, ...]
    rows: tuple[Tensor, ...]


class EmbeddingStage(torch.nn.Module):
    """Gathers, pools and updates the embedding rows of a batch on the host.

    A training step is ``out = stage(batch)``, a loss of `out`, ``loss.backward()``, ``stage.step(batch)``. A batch with
    a plan is trained on while the module is in training mode; otherwise the batch is evaluated, which changes no row,
    no residency and no plan, and reads a key that the index does not know as the vector it would start with.

    The stage has no torch parameters: its rows are in `stores`, one a group, and their optimizer is in the schema.
    ``mode="direct"`` works in the chunks; ``mode="arena"`` moves rows by the batches' plans, which must then come in
    order and without gaps (see :meth:`skip`). Both give the same parameters, bit for bit. `capacity` bounds the arena's
    rows, one number or one a group; the plans say how many are used. ``check_finite=True`` raises FloatingPointError
    that names the id and the row, before anything is updated.

    The rows are not in ``state_dict()``, which warns of it once: without the index nobody could tell whose they are.
    :func:`headrace.save_run` saves both. One caller at a time.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        lr: float = 0.01,
        eps: float = 1e-8,
        seed: SupportsIndex = 0,
        initializer: Initializer | None = None,
        mode: Mode = "direct",
        capacity: SupportsIndex | Sequence[SupportsIndex | None] | None = None,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(check_finite, bool):
            raise TypeError(f"check_finite={check_finite!r} is a {type(check_finite).__name__}, not a bool")
        self.schema = schema
        self.layout = feature_layout(schema)
        self.initializer = initializer or Uniform()
        self.seed = check_seed(seed)
        self.eps = check_eps(eps)
        self.check_finite = check_finite
        self.stores = tuple(
            ChunkStore(g.dim, g.state_floats, seed=self.seed, initializer=self.initializer) for g in self.layout.groups
        )
        self._lr = check_lr(lr)
        self._residency = self._make_residency(mode, capacity)
        self._last: _Gathered | None = None
        self._warns_of_rows = True

    def _make_residency(self, mode: Mode, capacity: SupportsIndex | Sequence[SupportsIndex | None] | None) -> Residency:
        limits = arena_limits(capacity, len(self.stores))
        if mode == "direct":
            return DirectResidency(self.stores)
        if mode != "arena":
            raise ValueError(f"mode={mode!r} is neither 'direct' nor 'arena'")
        return ArenaResidency(self.stores, limits)

    @property
    def lr(self) -> float:
        """Learning rate of the next :meth:`step`."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = check_lr(value)

    @property
    def feature_dims(self) -> dict[str, int]:
        """Columns of each pooled feature, in the order of the columns (schema order)."""
        return dict(self.layout.feature_dims)

    @property
    def output_dim(self) -> int:
        return self.layout.output_dim

    def forward(self, batch: Batch) -> Tensor:
        """Pooled features float32 [B, output_dim] in schema order; sequence features have no columns."""
        gathered = self._gather(batch)
        pooled = [g for g, layout in enumerate(self.layout.groups) if layout.is_pooled]
        rows = [gathered.rows[g] for g in pooled]
        return pool([gathered.bags[g] for g in pooled], rows, batch.num_rows, self.output_dim)

    def split(self, pooled: Tensor) -> dict[str, Tensor]:
        """Views [B, dim] of what :meth:`forward` gave, by feature."""
        dims = self.layout.feature_dims
        parts: tuple[Tensor, ...] = pooled.split(list(dims.values()), dim=1)  # type: ignore[no-untyped-call]
        return dict(zip(dims, parts, strict=True))

    def forward_sequences(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """(values float32 [n, dim], offsets int64 [B + 1]) of each sequence feature (pooling none), unweighted.

        Before or after :meth:`forward` of the same batch; both feed one :meth:`step`.
        """
        gathered = self._gather(batch)
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for bags, rows in zip(gathered.bags, gathered.rows, strict=True):
            if not bags.layout.sequences:
                continue
            values = sequence_values(bags, rows)
            sizes = [end - begin for begin, end in sequence_ranges(bags)]
            parts: tuple[Tensor, ...] = values.split(sizes)  # type: ignore[no-untyped-call]
            for f, part in zip(bags.layout.sequences, parts, strict=True):
                offsets = bags.offsets[f * batch.num_rows : (f + 1) * batch.num_rows + 1]
                found[bags.layout.features[f]] = (part, torch.from_numpy(offsets - offsets[0]))
        return {s.name: found[s.name] for s in self.schema.sparse if s.name in found}

    def step(self, batch: Batch) -> None:
        """One optimizer step on every row of `batch` for which ``backward`` gave gradients, with the present `lr`.

        `batch` must be the last one that was passed forward in training, and not yet stepped; else RuntimeError.
        Several forwards of one batch before its step add their gradients up.
        """
        last = self._last
        if last is None or batch.plan is None or last.batch.plan is not batch.plan:
            raise RuntimeError(
                "step() of a batch that was not the last training forward, or was stepped already; a step is "
                "stage(batch), loss.backward(), stage.step(batch), with the stage in training mode and a planned batch"
            )
        if any(len(rows) for rows in last.rows) and all(rows.grad is None for rows in last.rows):
            raise RuntimeError(
                "step() before backward gave any row a gradient: call loss.backward() of a loss of the stage's output "
                "first, or stage.skip(batch) to pass the batch by"
            )
        grads = [None if rows.grad is None else rows.grad.contiguous().numpy() for rows in last.rows]
        if self.check_finite:
            for g, grad in enumerate(grads):
                if grad is not None:
                    check_finite("gradient", grad, last.batch, last.batch.groups[g], last.bags[g])
        rules = [UpdateRule(name=g.optimizer, lr=self._lr, eps=self.eps) for g in self.layout.groups]
        self._last = None
        self._residency.update(batch.plan, last.batch.groups, grads, rules)

    def skip(self, batch: Batch) -> None:
        """Pass a planned batch by without training on it; needed in arena mode, where its movements must be done."""
        if batch.plan is None:
            raise ValueError("skip() of a batch without a plan: there is nothing to move")
        check_batch(batch, self.schema)
        self._last = None
        self._residency.skip(batch.plan)

    def flush(self) -> None:
        """Make `stores` hold the newest of every row; changes no residency."""
        self._residency.flush()

    def lookup_rows(self, group: int, locations: U64, ids: U64, tables: U32, missing: Bool) -> F32:
        """Newest rows float32 [n, dim + state] of a group; ABSENT or never written: as the row would start."""
        self.flush()
        out = np.empty((len(locations), self.stores[group].width), np.float32)
        self.stores[group].read(locations, ids, tables, missing, out)
        return out

    def state_arrays(self, committed: U64 | None = None) -> dict[str, Array]:
        """Copies of the written rows: ``locations_g`` uint64 [n] ascending and ``rows_g`` float32 [n, dim + state] of
        each group g.

        With `committed`, only rows at these locations. Whose rows they are is told by the index's snapshot.
        """
        self.flush()
        state: dict[str, Array] = {}
        for g, store in enumerate(self.stores):
            state[f"locations_{g}"], state[f"rows_{g}"] = store.export(committed)
        return state

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Replace all rows by what :meth:`state_arrays` gave, and empty the arenas.

        ValueError, before anything changes, for what :meth:`check_state_arrays` refuses.
        """
        self.check_state_arrays(state)
        self._last = None
        self._residency.drop()
        for g, store in enumerate(self.stores):
            store.load(state[f"locations_{g}"], state[f"rows_{g}"])

    def check_state_arrays(self, state: Mapping[str, Array]) -> None:
        """ValueError for rows of other groups, shapes or places than this stage's."""
        wanted = {f"{kind}_{g}" for g in range(len(self.stores)) for kind in ("locations", "rows")}
        if set(state) != wanted:
            raise ValueError(f"rows of {sorted(state)} for a stage of {sorted(wanted)}")
        for g, store in enumerate(self.stores):
            store.check_export(state[f"locations_{g}"], state[f"rows_{g}"])

    @contextmanager
    def rows_saved_elsewhere(self) -> Iterator[None]:
        """Within it ``state_dict()`` does not warn that the rows are not in it."""
        before, self._warns_of_rows = self._warns_of_rows, False
        try:
            yield
        finally:
            self._warns_of_rows = before

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Nothing to save, so that a model with the stage has the keys of its dense part; see the class."""
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[no-untyped-call]
        if self._warns_of_rows:
            self._warns_of_rows = False
            warnings.warn(
                "the embedding rows are not in state_dict(); save the run with headrace.save_run (or the rows with "
                "stage.state_arrays() and the index with its snapshot)",
                UserWarning,
                stacklevel=2,
            )

    def initial_rows(self, dim: int, ids: U64, tables: U32, missing: Bool) -> F32:
        """Vectors float32 [n, dim] that keys (raw id, table uid, missing flag) start from."""
        return initial_vectors(self.initializer, self.seed, ids, tables, missing, dim)

    def _gather(self, batch: Batch) -> _Gathered:
        """Unique rows of a batch: in training leaves, remembered for :meth:`step` (only those of the last batch)."""
        plan = batch.plan if self.training else None
        if plan is not None and self._last is not None and self._last.batch.plan is plan:
            return self._last
        check_batch(batch, self.schema)
        pairs = zip(batch.groups, self.layout.groups, strict=True)
        bags = tuple(bags_of(group, layout, batch.num_rows) for group, layout in pairs)
        values = self._read(batch) if plan is None else self._train(plan, batch)
        if self.check_finite:
            for g, rows in enumerate(values):
                check_finite("vector", rows, batch, batch.groups[g], bags[g])
        leaves = tuple(torch.from_numpy(v).requires_grad_(plan is not None) for v in values)
        gathered = _Gathered(batch, bags, leaves)
        if plan is not None:
            self._last = gathered
        return gathered

    def _train(self, plan: StepPlan, batch: Batch) -> list[F32]:
        self._last = None
        return self._residency.gather(plan, batch.groups)

    def _read(self, batch: Batch) -> list[F32]:
        self.flush()
        pairs = zip(self.stores, batch.groups, strict=True)
        return [read_rows(s, g, np.empty((g.num_unique, s.dim), np.float32)) for s, g in pairs]
