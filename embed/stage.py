"""The part of a model that turns a batch's unique rows into features, and applies their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from headrace.embed._rows import RowSource
from headrace.embed._threads import Threads
from headrace.embed.arguments import check_integer
from headrace.embed.arrays import F32, U32, U64, Array, Bool
from headrace.embed.batch_check import check_batch
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.finite import check_finite
from headrace.embed.initializer import Initializer, check_seed, initial_vectors
from headrace.embed.layout import GroupLayout, feature_layout
from headrace.embed.optimizers import check_lr
from headrace.embed.pending import PendingGradients
from headrace.embed.pooling import Bags, PoolWork, bags_of, pool, sequence_ranges, sequence_values
from headrace.embed.rank_exchange import RankExchange
from headrace.embed.residency import ArenaResidency, DirectResidency, Residency, arena_limits
from headrace.embed.row_gradients import RowGradients, leaf_of, with_gradients
from headrace.embed.row_keys import RowKeys
from headrace.embed.stage_optimizer import StageOptimizer
from headrace.embed.stage_state import load_stage_state, stage_state
from headrace.embed.table_options import check_tables, split_initializers
from headrace.embed.wire import WireType
from headrace.formats.schema import Schema, table_uid
from headrace.indexer.exchange.agreement import agree
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.indexed import ABSENT
from headrace.ingest.batch import Batch
from headrace.ingest.step_plan import StepPlan

Mode = Literal["direct", "arena"]


@dataclass(frozen=True, eq=False)
class _Forward:
    """One batch that went forward: its bags, rows and where they are found, one entry a group."""

    batch: Batch
    bags: tuple[Bags, ...]
    rows: tuple[RowGradients, ...]
    sources: tuple[RowSource, ...]


class EmbeddingStage(torch.nn.Module):
    """Gathers, pools and updates the embedding rows of a batch on the host.

    A training step is ``out = stage(batch)``, a loss of `out`, ``loss.backward()``, ``stage.step(batch)``, or
    ``stage.optimizer().step()`` in loops that have optimizers. A batch with a plan is trained on while the module is in
    training mode; otherwise the batch is evaluated, which changes no row, no residency and no plan, and reads a key
    that the index does not know as the vector it would start with.

    With a `communicator` (the loader's) the rows live at their owners: forward gets them from there, and the step sends
    the gradients back. All ranks call both for every batch, also for one without rows. A rank's loss is the mean over
    its own rows (``batch.valid``); the rows are updated with the gradient of the mean over the global batch. With
    `check_replicas_every` rows that all ranks hold are compared after every so many steps: RuntimeError if they differ.
    `wire` "bfloat16" or "float16" halves what travels, and is no longer exact.

    The stage has no torch parameters: its rows are in `stores`, one a group, and their optimizer is in the schema.
    ``mode="direct"`` works in the chunks; ``mode="arena"`` moves rows by the batches' plans, which must then come in
    order and without gaps (see :meth:`skip`). Both give the same parameters, bit for bit. `capacity` bounds the arena's
    rows, one number or one a group; the plans say how many are used. ``check_finite=True`` raises FloatingPointError
    that names the table, the id and the row, before anything is updated.

    `lr`, `eps`, `weight_decay` and `betas` (of Adam) hold for all tables until they are changed in
    ``optimizer().param_groups``. `initializer` is one for all tables or a mapping from table to initialiser (tables
    that it does not name start from the default). Tables in `frozen` are read and never updated. `num_threads` threads
    (torch's number if not given) share the work; no result depends on it.

    Gradients add up until the step: those of several forwards of a batch, and of several batches. A batch whose forward
    was not followed by a ``backward`` is passed by.

    A large output and large gradients are given memory of earlier ones that nothing refers to any more.

    Nested in a model, the stage puts nothing into the model's ``state_dict()``, which warns of it once: the rows may be
    many times the model, and without the index nobody could tell whose they are. :func:`headrace.save_run` saves both.
    The stage's own :meth:`state_dict` has the rows. One caller at a time.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        lr: float = 0.01,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        seed: SupportsIndex = 0,
        initializer: Initializer | Mapping[str, Initializer] | None = None,
        frozen: Collection[str] = (),
        mode: Mode = "direct",
        capacity: SupportsIndex | Sequence[SupportsIndex | None] | None = None,
        num_threads: SupportsIndex | None = None,
        check_finite: bool = False,
        communicator: Communicator | None = None,
        check_replicas_every: SupportsIndex = 0,
        wire: WireType = "float32",
    ) -> None:
        super().__init__()
        if not isinstance(check_finite, bool):
            raise TypeError(f"check_finite={check_finite!r} is a {type(check_finite).__name__}, not a bool")
        self.schema = schema
        self.frozen = check_tables("frozen", frozen, schema)
        self.layout = feature_layout(schema, self.frozen)
        self.initializer, self.table_initializers = split_initializers(initializer, schema)
        self.seed = check_seed(seed)
        self.check_finite = check_finite
        self.stores = tuple(self._make_store(group) for group in self.layout.groups)
        threads = torch.get_num_threads() if num_threads is None else num_threads
        self.num_threads = check_integer("num_threads", threads, least=1, most=256)
        self._work = PoolWork(Threads(self.num_threads))
        self._residency = self._make_residency(mode, capacity)
        self._last: _Forward | None = None
        self._optimizer = StageOptimizer(
            [(group.optimizer, group.tables) for group in self.layout.groups],
            apply=self._apply_pending,
            drop=self._drop_pending,
            lr=lr,
            eps=eps,
            weight_decay=weight_decay,
            betas=betas,
        )
        frozen_uids = np.array([table_uid(name) for name in sorted(self.frozen)], np.uint32)
        here = frozen_uids if communicator is None else frozen_uids[:0]  # over ranks the owner leaves them out
        self._pending = PendingGradients(len(self.stores), here, self._work.threads, self._optimizer.show)
        self._warns_of_rows = True
        self._exchange: RankExchange | None = None
        if communicator is not None:
            self._exchange = self._make_exchange(communicator, mode, frozen_uids, check_replicas_every, wire)

    def _make_exchange(
        self, communicator: Communicator, mode: Mode, frozen: U32, every: SupportsIndex, wire: WireType
    ) -> RankExchange:
        """Also makes sure that the stages of all ranks are alike, since each rank updates rows of all."""
        options = [{k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups]
        facts = {
            "schema": self.schema.digest,
            "seed": self.seed,
            "mode": mode,
            "wire": wire,
            "optimizer options": options,
        }
        facts |= {
            "initializer": (self.initializer, sorted(self.table_initializers.items())),
            "frozen": sorted(self.frozen),
        }
        agree(communicator.channel("control"), facts)
        check_every = check_integer("check_replicas_every", every, least=0)
        return RankExchange(
            communicator,
            self.stores,
            self._residency,
            frozen=frozen,
            threads=self._work.threads,
            check_every=check_every,
            wire=wire,
        )

    def _make_store(self, group: GroupLayout) -> ChunkStore:
        own = {table_uid(name): one for name, one in self.table_initializers.items() if name in group.tables}
        return ChunkStore(
            group.dim, group.state_floats, seed=self.seed, initializer=self.initializer, table_initializers=own
        )

    def _make_residency(self, mode: Mode, capacity: SupportsIndex | Sequence[SupportsIndex | None] | None) -> Residency:
        limits = arena_limits(capacity, len(self.stores))
        threads = self._work.threads
        if mode == "direct":
            return DirectResidency(self.stores, threads)
        if mode != "arena":
            raise ValueError(f"mode={mode!r} is neither 'direct' nor 'arena'")
        return ArenaResidency(self.stores, limits, threads)

    def optimizer(self) -> StageOptimizer:
        """The one optimizer of the rows: for schedulers, GradScaler, and loops that call ``step`` and ``zero_grad``."""
        return self._optimizer

    @property
    def lr(self) -> float:
        """Learning rate of the next step; ValueError when read while the row layouts differ in it."""
        return float(self._optimizer.shared("lr"))

    @lr.setter
    def lr(self, value: float) -> None:
        checked = check_lr(value)
        for group in self._optimizer.param_groups:
            group["lr"] = checked

    @property
    def eps(self) -> float:
        """Eps of the next step; ValueError when read while the row layouts differ in it."""
        return float(self._optimizer.shared("eps"))

    @property
    def over_ranks(self) -> bool:
        """Whether the rows live at several ranks."""
        return self._exchange is not None

    @property
    def num_steps(self) -> int:
        """Optimizer steps so far, which Adam's bias correction counts."""
        return self._optimizer.num_steps

    @property
    def feature_dims(self) -> dict[str, int]:
        """Columns of each pooled feature, in the order of the columns (schema order)."""
        return dict(self.layout.feature_dims)

    @property
    def output_dim(self) -> int:
        return self.layout.output_dim

    def forward(self, batch: Batch) -> Tensor:
        """Pooled features float32 [B, output_dim] in schema order; sequence features have no columns."""
        forward = self._forward(batch)
        pooled = [g for g, layout in enumerate(self.layout.groups) if layout.is_pooled]
        bags, sources = [forward.bags[g] for g in pooled], [forward.sources[g] for g in pooled]
        leaves = [forward.rows[g].leaf for g in pooled]
        return pool(bags, sources, leaves, (batch.num_rows, self.output_dim), self._work)

    def split(self, pooled: Tensor) -> dict[str, Tensor]:
        """Views [B, dim] of what :meth:`forward` gave, by feature."""
        dims = self.layout.feature_dims
        parts: tuple[Tensor, ...] = pooled.split(list(dims.values()), dim=1)  # type: ignore[no-untyped-call]
        return dict(zip(dims, parts, strict=True))

    def forward_sequences(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """(values float32 [n, dim], offsets int64 [B + 1]) of each sequence feature (pooling none), unweighted.

        Before or after :meth:`forward` of the same batch; both feed one :meth:`step`.
        """
        forward = self._forward(batch)
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for g, bags in enumerate(forward.bags):
            if not bags.layout.sequences:
                continue
            values = sequence_values(bags, self._values(forward, g), forward.rows[g].leaf, self._work)
            sizes = [end - begin for begin, end in sequence_ranges(bags)]
            parts: tuple[Tensor, ...] = values.split(sizes)  # type: ignore[no-untyped-call]
            for f, part in zip(bags.layout.sequences, parts, strict=True):
                offsets = bags.offsets[f * batch.num_rows : (f + 1) * batch.num_rows + 1]
                found[bags.layout.features[f]] = (part, torch.from_numpy(offsets - offsets[0]))
        return {s.name: found[s.name] for s in self.schema.sparse if s.name in found}

    def step(self, batch: Batch) -> None:
        """One optimizer step on every row that has a gradient, with the present hyper-parameters.

        `batch` must be the last one that was passed forward in training, and not yet stepped; else RuntimeError. The
        gradients of its forwards, and of batches before it since the last step, add up.
        """
        last = self._last
        if last is None or batch.plan is None or last.batch.plan is not batch.plan:
            raise RuntimeError(
                "step() of a batch that was not the last training forward, or was stepped already; a step is "
                "stage(batch), loss.backward(), stage.step(batch), with the stage in training mode and a planned batch"
            )
        if self._pending.expects_some and not self._pending.any:
            raise RuntimeError(
                "step() before backward gave any row a gradient: call loss.backward() of a loss of the stage's output "
                "first, or stage.skip(batch) to pass the batch by"
            )
        self._optimizer.step()

    def skip(self, batch: Batch) -> None:
        """Pass a planned batch by without training on it; needed in arena mode, where its movements must be done.

        Gradients of the batch that went forward last, if there are any, are dropped.
        """
        if batch.plan is None:
            raise ValueError("skip() of a batch without a plan: there is nothing to move")
        check_batch(batch, self.schema)
        self._residency.skip(batch.plan)
        self._last = None
        self._pending.pass_by()
        if self._exchange is not None and batch.ranks is not None:
            self._exchange.skip(batch.ranks)

    def pending_leaves(self) -> list[Tensor]:
        """Tensors that wait for the step, at most one a row layout; ``.grad`` float32 [rows, dim] is the gradient of
        different rows, and may be scaled in place."""
        return [rows.leaf for rows in self._pending.kept() if rows is not None]

    def add_gradients(self, group: int, keys: RowKeys, grads: F32) -> None:
        """Add grads float32 [n, dim] of rows, each once, to what the next step applies; for loops without autograd."""
        self._pending.add(group, with_gradients(keys, torch.from_numpy(grads)))

    def flush(self) -> None:
        """Make `stores` hold the newest of every row; changes no residency."""
        self._settle()
        self._residency.flush()

    def lookup_rows(self, group: int, locations: U64, ids: U64, tables: U32, missing: Bool) -> F32:
        """Newest rows float32 [n, dim + state] of a group; ABSENT or never written: as the row would start."""
        self.flush()
        out = np.empty((len(locations), self.stores[group].width), np.float32)
        self.stores[group].read(locations, ids, tables, missing, out, threads=self._work.threads)
        return out

    def read_vectors(self, group: int, keys: RowKeys) -> F32:
        """Newest vectors float32 [n, dim] of rows of a group; ABSENT or never written: as the row would start."""
        self._settle()
        return self._read(self._residency.source(group, keys, None))

    def write_rows(self, group: int, keys: RowKeys, rows: F32) -> None:
        """Replace rows, each once, by `rows` float32 [n, dim + state], wherever they are."""
        self._settle()
        if rows.shape != (len(keys.locations), self.stores[group].width):
            raise ValueError(f"rows of shape {rows.shape} for {len(keys.locations)} of {self.stores[group].width}")
        self._residency.write(group, keys, rows)

    def forget_rows(self, group: int, locations: U64) -> None:
        """Make rows unwritten, after :meth:`~headrace.indexer.dit.DIT.remove` took their keys away: whichever key comes
        to the place begins as a new row. ABSENT is passed over.

        Between two runs of plans (between epochs): the arenas are written back and emptied.
        """
        self._settle()
        self._residency.flush()
        self._residency.drop()
        self.stores[group].forget(locations[locations != ABSENT])

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
        """Replace all rows by what :meth:`state_arrays` gave, and empty the arenas; pending gradients are dropped.

        ValueError, before anything changes, for what :meth:`check_state_arrays` refuses.
        """
        self._settle()
        self.check_state_arrays(state)
        self._last = None
        self._pending.clear()
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

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """All that training on needs beside the index; see :func:`~headrace.embed.stage_state.stage_state`.

        Called by a model that contains the stage: nothing, see the class.
        """
        if args or kwargs.get("destination") is not None or kwargs.get("prefix"):
            nested: dict[str, Any] = super().state_dict(*args, **kwargs)
            return nested
        return stage_state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take over what :meth:`state_dict` gave; the index must have been restored to the same moment.

        ValueError or TypeError, before anything changes, for another schema, seed or initialiser, or for rows that do
        not fit. `strict` and `assign` are torch's, and have no effect.
        """
        load_stage_state(self, state_dict)

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
        out = initial_vectors(self.initializer, self.seed, ids, tables, missing, dim)
        for name, one in self.table_initializers.items():
            own = tables == np.uint32(table_uid(name))
            out[own] = initial_vectors(one, self.seed, ids[own], tables[own], missing[own], dim)
        return out

    def _forward(self, batch: Batch) -> _Forward:
        """The rows of a batch; in training they are remembered for the step."""
        plan = batch.plan if self.training else None
        if plan is not None and self._last is not None and self._last.batch.plan is plan:
            return self._last
        check_batch(batch, self.schema)
        pairs = zip(batch.groups, self.layout.groups, strict=True)
        bags = tuple(bags_of(group, layout, batch.num_rows, self._work.threads) for group, layout in pairs)
        keys = [RowKeys.of(group) for group in batch.groups]
        if plan is None:
            self.flush()
        else:
            self._last = None
            self._pending.let_go()
        if self._exchange is not None or batch.ranks is not None:
            rows, sources = self._enter_over_ranks(batch, keys, plan)
        else:
            if plan is not None:
                self._residency.enter(plan, keys)
            rows = [self._make_rows(g, key, plan) for g, key in enumerate(keys)]
            sources = [self._residency.source(g, r.keys, r.slots) for g, r in enumerate(rows)]
        forward = _Forward(batch, bags, tuple(rows), tuple(sources))
        if self.check_finite:
            self._check_vectors(forward)
        if plan is not None:
            self._last = forward
            self._pending.collect(rows)
        return forward

    def _enter_over_ranks(
        self, batch: Batch, keys: Sequence[RowKeys], plan: StepPlan | None
    ) -> tuple[list[RowGradients], list[RowSource]]:
        """Get the rows from their owners. Over ranks a row's place in the batch stands for its location."""
        if self._exchange is None or batch.ranks is None:
            raise ValueError(
                "the loader and the stage are not both over ranks: give DataLoader and EmbeddingStage the same "
                "communicator"
            )
        if plan is not None and self._pending.any:
            raise RuntimeError("gradients of an earlier batch wait: over ranks each batch has a step of its own")
        sources = self._exchange.enter(batch.ranks, plan)
        places = [key._replace(locations=np.arange(len(key.locations), dtype=np.uint64)) for key in keys]
        trained = [plan is not None and bool(layout.trained.any()) for layout in self.layout.groups]
        triples = zip(places, self.layout.groups, trained, strict=True)
        rows = [RowGradients(k, leaf_of(len(k.locations), layout.dim, trained=t)) for k, layout, t in triples]
        return rows, sources

    def _apply_over_ranks(self, exchange: RankExchange) -> None:
        """Every rank takes part, with or without gradients of its own, once a batch that went forward."""
        last = self._last
        if last is None or last.batch.ranks is None or last.batch.plan is None:
            return
        rules = self._optimizer.rules()
        if self.check_finite:
            self._check_gradients()
        grads: list[F32 | None] = []
        for rows, forward in zip(self._pending.take(), last.rows, strict=True):
            grad = None if rows is None else rows.grad
            if rows is not None and grad is not None and len(grad) < len(forward.leaf):
                whole = np.zeros((len(forward.leaf), grad.shape[1]), np.float32)
                whole[rows.keys.locations.astype(np.int64)] = grad
                grad = whole
            grads.append(grad)
        self._last = None
        self._optimizer.num_steps += 1
        exchange.apply(last.batch.ranks, grads, rules, last.batch.plan)

    def _settle(self) -> None:
        """Over ranks: make the updates that were put off until the step to come."""
        if self._exchange is not None:
            self._exchange.settle()

    def _drop_pending(self) -> None:
        """What ``optimizer().zero_grad()`` does."""
        self._pending.zero()

    def _make_rows(self, group: int, keys: RowKeys, plan: StepPlan | None) -> RowGradients:
        layout = self.layout.groups[group]
        trained = plan is not None and bool(layout.trained.any())
        slots = self._residency.slots(plan, group) if plan is not None else None
        return RowGradients(keys, leaf_of(len(keys.locations), layout.dim, trained=trained), slots)

    def _values(self, forward: _Forward, group: int) -> F32:
        """Vectors float32 [U, dim] of a forward's rows."""
        return self._read(forward.sources[group])

    def _read(self, source: RowSource) -> F32:
        out = np.empty((source.count, source.dim), np.float32)
        source.read(out, self._work.threads)
        return out

    def _check_vectors(self, forward: _Forward) -> None:
        for g, (bags, rows) in enumerate(zip(forward.bags, forward.rows, strict=True)):
            check_finite("vector", self._values(forward, g), rows.keys, self.schema, forward.batch, bags)

    def _apply_pending(self) -> None:
        """What ``optimizer().step()`` does."""
        if self._exchange is not None:
            self._apply_over_ranks(self._exchange)
            return
        if not self._pending.any:
            return
        rules = self._optimizer.rules()
        if self.check_finite:
            self._check_gradients()
        taken = self._pending.take()
        self._last = None
        self._optimizer.num_steps += 1
        for g, (rows, rule) in enumerate(zip(taken, rules, strict=True)):
            grad = None if rows is None else rows.grad
            if rows is not None and grad is not None:
                self._residency.update(g, rows.keys, rows.slots, grad, rule)

    def _check_gradients(self) -> None:
        batch = self._last.batch if self._last is not None else None
        for g, rows in enumerate(self._pending.kept()):
            grad = None if rows is None else rows.grad
            if rows is not None and grad is not None:
                bags = self._last.bags[g] if self._last is not None else None
                check_finite("gradient", grad, rows.keys, self.schema, batch, bags)
