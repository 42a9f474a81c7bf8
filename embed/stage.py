"""The part of a model that turns a batch's unique rows into features, and applies their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.embed.chunk_store import ChunkStore
from headrace.embed.finite import check_finite
from headrace.embed.initializer import Initializer, Uniform, check_seed, initial_vectors
from headrace.embed.layout import feature_layout
from headrace.embed.optimizers import UpdateRule, check_eps, check_lr
from headrace.embed.pooling import Bags, bags_of, pool, sequence_ranges, sequence_values
from headrace.embed.residency import ArenaResidency, DirectResidency, Residency, read_rows
from headrace.formats.schema import Schema
from headrace.ingest.batch import Batch
from headrace.ingest.step_plan import StepPlan

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]
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

    One caller at a time.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        lr: float = 0.01,
        eps: float = 1e-8,
        seed: int = 0,
        initializer: Initializer | None = None,
        mode: Mode = "direct",
        capacity: int | Sequence[int] | None = None,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.schema = schema
        self.layout = feature_layout(schema)
        self.initializer = initializer or Uniform()
        self.seed = check_seed(seed)
        self.eps = check_eps(eps)
        self.check_finite = check_finite
        self.stores = tuple(
            ChunkStore(g.dim, g.state_floats, seed=seed, initializer=self.initializer) for g in self.layout.groups
        )
        self._lr = check_lr(lr)
        self._residency = self._make_residency(mode, capacity)
        self._last: _Gathered | None = None

    def _make_residency(self, mode: Mode, capacity: int | Sequence[int] | None) -> Residency:
        if mode == "direct":
            return DirectResidency(self.stores)
        if mode != "arena":
            raise ValueError(f"mode={mode!r} is neither 'direct' nor 'arena'")
        limits = [capacity] * len(self.stores) if capacity is None or isinstance(capacity, int) else list(capacity)
        if len(limits) != len(self.stores):
            raise ValueError(f"{len(limits)} capacities for {len(self.stores)} groups")
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
        self._check_batch(batch)
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

    def state_arrays(self, committed: U64 | None = None) -> dict[str, npt.NDArray[Any]]:
        """Copies of the written rows: ``locations_g`` uint64 [n] ascending and ``rows_g`` float32 [n, dim + state] of
        each group g.

        With `committed`, only rows at these locations. Whose rows they are is told by the index's snapshot.
        """
        self.flush()
        state: dict[str, npt.NDArray[Any]] = {}
        for g, store in enumerate(self.stores):
            state[f"locations_{g}"], state[f"rows_{g}"] = store.export(committed)
        return state

    def load_state_arrays(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace all rows by what :meth:`state_arrays` gave, and empty the arenas.

        ValueError, before anything changes, for rows of other groups, shapes or places.
        """
        wanted = {f"{kind}_{g}" for g in range(len(self.stores)) for kind in ("locations", "rows")}
        if set(state) != wanted:
            raise ValueError(f"rows of {sorted(state)} for a stage of {sorted(wanted)}")
        parts = [(state[f"locations_{g}"], state[f"rows_{g}"]) for g in range(len(self.stores))]
        for store, (locations, rows) in zip(self.stores, parts, strict=True):
            store.check_export(locations, rows)
        self._last = None
        self._residency.drop()
        for store, (locations, rows) in zip(self.stores, parts, strict=True):
            store.load(locations, rows)

    def initial_rows(self, dim: int, ids: U64, tables: U32, missing: Bool) -> F32:
        """Vectors float32 [n, dim] that keys (raw id, table uid, missing flag) start from."""
        return initial_vectors(self.initializer, self.seed, ids, tables, missing, dim)

    def _gather(self, batch: Batch) -> _Gathered:
        """Unique rows of a batch: in training leaves, remembered for :meth:`step` (only those of the last batch)."""
        plan = batch.plan if self.training else None
        if plan is not None and self._last is not None and self._last.batch.plan is plan:
            return self._last
        self._check_batch(batch)
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

    def _check_batch(self, batch: Batch) -> None:
        if batch.schema is not self.schema and batch.schema != self.schema:
            raise ValueError(
                f"a batch of another schema (features {', '.join(batch.feature_names)}) than the stage's: columns, tables, "
                "dims and optimizers must be the same; give both the same Schema"
            )
        if batch.plan is not None and len(batch.plan.groups) != len(self.stores):
            raise ValueError(f"a plan of {len(batch.plan.groups)} groups for a stage of {len(self.stores)}")
