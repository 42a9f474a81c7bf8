"""The part of a model that turns a batch's unique rows into features, and applies their gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable imports the compiler, which takes seconds

from headrace.embed._threads import Threads
from headrace.embed.arguments import check_integer, check_number
from headrace.embed.arrays import F32, U32, U64, Array, Bool
from headrace.embed.batch_check import check_batch
from headrace.embed.forward_rows import (
    Forward,
    check_finite_gradients,
    check_finite_vectors,
    checked_bags,
    find_rows,
    read_vectors,
)
from headrace.embed.held_gradients import AsGathered, HeldGradients
from headrace.embed.index_binding import IndexBinding, serial_of
from headrace.embed.initializer import Initializer, check_seed, initial_vectors
from headrace.embed.kernels import KernelsName, NativeKernels
from headrace.embed.layout import feature_layout
from headrace.embed.optimizers import check_lr
from headrace.embed.pending import PendingGradients
from headrace.embed.pooling import Bags, sequence_ranges
from headrace.embed.rank_exchange import RankExchange
from headrace.embed.row_gradients import with_gradients
from headrace.embed.row_keys import RowKeys
from headrace.embed.rows_module import RowsModule
from headrace.embed.stage_optimizer import StageOptimizer
from headrace.embed.stage_over_ranks import (
    check_over_ranks,
    check_vectors_alike,
    enter_from_owners,
    facts_of,
    gradients_to_send,
    grads_of,
)
from headrace.embed.stage_parts import Capacity, Mode, check_device, make_parts, make_store
from headrace.embed.stage_state import load_stage_state, stage_state
from headrace.embed.step_times import StepTimes
from headrace.embed.step_warnings import StepWarnings
from headrace.embed.table_options import check_tables, split_initializers
from headrace.embed.wire import Wire, WireType
from headrace.formats.checks import check_flag, check_type
from headrace.formats.schema import Schema, check_schema, table_uid
from headrace.formats.uninterrupted import uninterrupted
from headrace.indexer.exchange.agreement import agree
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.indexed import ABSENT
from headrace.indexer.lookup_order import next_in_order
from headrace.ingest.batch import Batch
from headrace.ingest.step_plan import StepPlan

_THIS_BATCH = "this batch"

_TO_READ_ROWS = (
    " that were put off, before rows are read (all ranks call flush, lookup_rows, state_dict, export_table and what "
    "else reads rows, at the same place)"
)

OVERLAP = True
"""Whether a thread moves the rows of an arena, if not said."""

BATCH = (
    "a headrace.Batch, as a DataLoader (or ToBatch) gives it; for ids of your own take RowsFrom(source, schema) as the "
    "loader's dataset, or a RowDatabase"
)
"""What a stage is called with."""

COMMUNICATOR = "a headrace.Communicator, as connect() gives it, or None"


class EmbeddingStage(RowsModule):
    """Gathers, pools and updates the embedding rows of a batch, on the host or on a GPU.

    A training step is ``out = stage(batch)``, a loss of `out`, ``loss.backward()``, ``stage.step(batch)``, or
    ``stage.optimizer().step()`` in loops that have optimizers. A batch with a plan is trained on while the module is in
    training mode; otherwise the batch is evaluated, which changes no row, no residency and no plan, and reads a key
    that the index does not know as the vector it would start with.

    With a `communicator` (the loader's) the rows live at their owners: forward gets them from there, and the step sends
    the gradients back. All ranks call both for every batch, also for one without rows. A rank's loss is the mean over
    its own rows (``batch.valid``); the rows are updated with the gradient of the mean over the global batch. With
    `check_replicas_every` the options of the step (`lr` and the others, of each table) are compared at every so many
    steps: RankMismatchError before anything is updated; and after it the rows that all ranks hold: RuntimeError.
    `wire` "bfloat16" or "float16" halves what travels, and is no longer exact; a number too large for float16 is a
    FloatingPointError of the rank that would send it.

    The stage has no torch parameters: its rows are in `stores`, one a group, and their optimizer is in the schema.
    ``mode="direct"`` works in the chunks; ``mode="arena"`` moves rows by the batches' plans, which must then come in
    order and without gaps (see :meth:`skip`). Both give the same parameters, bit for bit. `capacity` bounds the arena's
    rows, one number or one a group; the plans say how many are used. ``check_finite=True`` raises FloatingPointError
    that names the table, the id and the row, before anything is updated; over ranks on all of them alike, at the cost
    of two small messages a step, so that all can ``skip``.

    `lr`, `eps`, `weight_decay` and `betas` (of Adam) hold for all tables until they are changed in
    ``optimizer().param_groups``. `initializer` is one for all tables or a mapping from table to initialiser (tables
    that it does not name start from the default). Tables in `frozen` are read and never updated. `num_threads` threads
    (torch's number if not given) share the work; no result depends on it.

    A batch is worked on as the loader gave it. One that was made or changed by hand must have the dtypes and lengths of
    :class:`headrace.Batch`, which are checked in every mode; values are where the stage goes by them (see
    `batch_check.py` for those that nobody looks at).

    Gradients add up until the step: those of several forwards of a batch, and of several batches. A batch whose forward
    was not followed by a ``backward`` is passed by.

    In arena mode with ``overlap=True`` a thread moves the rows beside the trainer, which waits for no row before the
    step that gathers it; the parameters are the same, bit for bit. An error of the thread is raised by a later call,
    with its type. :meth:`close` ends the thread; :meth:`stats` tells where the time of steps goes.

    ``device="cuda"`` has the arena, the output and the gradients on a GPU, and works there with torch's operators (on
    the CPU too with ``kernels="torch"``): parameters then equal those of the host to rounding. Batches stay on the
    host, best in page-locked memory; one that was moved to the device is copied back for its checks.

    A large output and large gradients are given memory of earlier ones that nothing refers to any more.

    Nested in a model, the stage puts nothing into the model's ``state_dict()``, which warns of it once: the rows may be
    many times the model, and without the index nobody could tell whose they are. :func:`headrace.save_run` saves both.
    The stage's own :meth:`state_dict` has the rows. For the same reason it cannot be copied or pickled.

    Its rows are found by one index, that of the first batch: batches of another are refused with ValueError (see
    ``index=loader.index``), until a state is loaded. One caller at a time.
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
        capacity: Capacity = None,
        overlap: bool = OVERLAP,
        device: torch.device | str | None = None,
        kernels: KernelsName | None = None,
        num_threads: SupportsIndex | None = None,
        check_finite: bool = False,
        communicator: Communicator | None = None,
        check_replicas_every: SupportsIndex = 0,
        wire: WireType = "float32",
    ) -> None:
        super().__init__()
        check_schema(schema)
        check_type("communicator", communicator, (Communicator, type(None)), COMMUNICATOR)
        check_type("wire", wire, str, "the name of a type: 'float32', 'bfloat16' or 'float16'")
        self.check_finite = check_flag("check_finite", check_finite)
        self.schema = schema
        self.frozen = check_tables("frozen", frozen, schema)
        self.layout = feature_layout(schema, self.frozen)
        self.initializer, self.table_initializers = split_initializers(initializer, schema)
        self.seed = check_seed(seed)
        groups = self.layout.groups
        self.stores = tuple(make_store(g, self.seed, self.initializer, self.table_initializers) for g in groups)
        threads = torch.get_num_threads() if num_threads is None else num_threads
        self.num_threads = check_integer("num_threads", threads, least=1, most=256)
        self.device, kernels = check_device(device, kernels, mode)
        self._threads = Threads(self.num_threads)
        self._times = StepTimes(moves_beside=check_flag("overlap", overlap) and mode == "arena")
        self._kernels, self._residency = make_parts(
            self.stores, self.device, kernels, mode, capacity, self._threads, self._times
        )
        self._last: Forward | None = None
        self._index = IndexBinding()
        self._optimizer = StageOptimizer(
            [(group.optimizer, group.tables) for group in groups],
            apply=self._apply_pending,
            drop=self._drop_pending,
            lr=lr,
            eps=eps,
            weight_decay=weight_decay,
            betas=betas,
        )
        frozen_uids = np.array([table_uid(name) for name in sorted(self.frozen)], np.uint32)
        here = frozen_uids if communicator is None else frozen_uids[:0]  # over ranks the owner leaves them out
        self._pending = PendingGradients(
            len(groups), here, self._kernels.sum_rows, self._optimizer.show, one_batch=communicator is not None
        )
        self._warnings = StepWarnings()
        self._num_replaced = 0
        self._forgot = -1  # when, in the order of lookups
        self._half_done: str | None = None
        self._exchange: RankExchange | None = None
        Wire(wire)  # refused also where nothing travels
        if communicator is not None:
            self._exchange = self._make_exchange(communicator, mode, frozen_uids, check_replicas_every, wire)

    def _make_exchange(
        self, communicator: Communicator, mode: Mode, frozen: U32, every: SupportsIndex, wire: WireType
    ) -> RankExchange:
        """Also makes sure that the stages of all ranks are alike, since each rank updates rows of all."""
        if not isinstance(self._kernels, NativeKernels):
            raise ValueError("over ranks the stage works on the host, with its native kernels")
        check_every = check_integer("check_replicas_every", every, least=0)
        facts = facts_of(self, mode=mode, wire=wire, check_finite=self.check_finite, check_replicas_every=check_every)
        agree(communicator.channel("control"), facts, "its EmbeddingStage (all ranks make one)")
        return RankExchange(
            communicator,
            self.stores,
            self._residency,
            schema=self.schema,
            frozen=frozen,
            threads=self._threads,
            check_every=check_every,
            wire=wire,
        )

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
    def communicator(self) -> Communicator | None:
        """The ranks that the rows live at; None for one process."""
        return None if self._exchange is None else self._exchange.communicator

    @property
    def num_steps(self) -> int:
        """Optimizer steps so far, which Adam's bias correction counts."""
        return self._optimizer.num_steps

    @property
    def num_replaced(self) -> int:
        """How often places were given to other rows: by :meth:`forget_rows` and by loading a state."""
        return self._num_replaced

    @property
    def feature_dims(self) -> dict[str, int]:
        """Columns of each pooled feature, in the order of the columns (schema order)."""
        return dict(self.layout.feature_dims)

    @property
    def output_dim(self) -> int:
        return self.layout.output_dim

    @_disable_dynamo  # in a compiled model too
    def forward(self, batch: Batch) -> Tensor:
        """Pooled features float32 [B, output_dim] in schema order; sequence features have no columns."""
        check_type("batch", batch, Batch, BATCH)
        forward = self._forward(batch)
        pooled = [g for g, layout in enumerate(self.layout.groups) if layout.is_pooled]
        bags, sources = [forward.bags[g] for g in pooled], [forward.sources[g] for g in pooled]
        leaves = [forward.rows[g].leaf for g in pooled]
        with self._times.of_training("forward", forward.trains):
            return self._kernels.pool(bags, sources, leaves, (batch.num_rows, self.output_dim))

    def split(self, pooled: Tensor) -> dict[str, Tensor]:
        """Views [B, dim] of what :meth:`forward` gave, by feature."""
        dims = self.layout.feature_dims
        check_type("pooled", pooled, Tensor, "the tensor that stage(batch) gave")
        if pooled.shape[-1:] != (self.output_dim,) or pooled.ndim != 2:
            raise ValueError(f"pooled is {list(pooled.shape)}, not [B, {self.output_dim}] as stage(batch) gives it")
        parts: tuple[Tensor, ...] = pooled.split(list(dims.values()), dim=1)  # type: ignore[no-untyped-call]
        return dict(zip(dims, parts, strict=True))

    @_disable_dynamo  # in a compiled model too
    def forward_sequences(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """(values float32 [n, dim], offsets int64 [B + 1]) of each sequence feature (pooling none), unweighted.

        Before or after :meth:`forward` of the same batch; both feed one :meth:`step`.
        """
        check_type("batch", batch, Batch, BATCH)
        forward = self._forward(batch)
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for g, bags in enumerate(forward.bags):
            if not bags.layout.sequences:
                continue
            with self._times.of_training("forward", forward.trains):
                values = self._kernels.sequence_values(bags, forward.sources[g], forward.rows[g].leaf)
            sizes = [end - begin for begin, end in sequence_ranges(bags)]
            parts: tuple[Tensor, ...] = values.split(sizes)  # type: ignore[no-untyped-call]
            for f, part in zip(bags.layout.sequences, parts, strict=True):
                offsets = bags.offsets[f * batch.num_rows : (f + 1) * batch.num_rows + 1]
                found[bags.layout.features[f]] = (part, torch.from_numpy(offsets - offsets[0]).to(self.device))
        return {s.name: found[s.name] for s in self.schema.sparse if s.name in found}

    def step(self, batch: Batch) -> None:
        """One optimizer step on every row that has a gradient, with the present hyper-parameters.

        `batch` must be the last one that was passed forward in training, and not yet stepped; else RuntimeError. The
        gradients of its forwards, and of batches before it since the last step, add up.
        """
        check_type("batch", batch, Batch, BATCH)
        self._check_whole()
        last = self._last
        if last is not None and batch.plan is not None and _is_split(last.batch.plan, batch.plan):
            raise RuntimeError(
                f"step() of a batch of which another part went forward last: step {batch.plan.step} was split "
                "(batch.split_hot()), and its parts have one step together. After stage(part) and backward of each of "
                "split.parts call stage.optimizer().step(), which applies the gradients of all"
            )
        if batch.plan is None:
            raise RuntimeError(
                "step() of a batch without a plan, which is scored and not trained on: make its loader with "
                "DataLoader(..., train=True), as is the default"
            )
        if last is None or last.batch.plan is not batch.plan:
            raise RuntimeError(
                "step() of a batch that was not the last training forward, or was stepped already; a step is "
                "stage(batch), loss.backward(), stage.step(batch), with the stage in training mode and a planned batch "
                "(stage.optimizer().step() applies what waits, whichever batches it is of)"
            )
        if self._pending.expects_some and not self._pending.any:
            raise RuntimeError(
                "step() before backward gave any row a gradient: call loss.backward() of a loss of the stage's output "
                "first, or stage.skip(batch) to pass the batch by"
            )
        self._optimizer.step()

    def skip(self, batch: Batch) -> None:
        """Pass a planned batch by without training on it; needed in arena mode, where its movements must be done.

        Gradients that `batch` gave, clipped or not, are dropped; those of batches before it go on waiting for the step,
        unclipped if they were clipped together with it. RuntimeError for a batch whose gradients cannot be told from
        those of a later one any more, and over ranks while gradients of another batch wait.
        """
        check_type("batch", batch, Batch, BATCH)
        plan = batch.plan
        if plan is None:
            raise ValueError("skip() of a batch without a plan: there is nothing to move")
        self._check_whole()
        check_batch(batch, self.schema, self.device)
        self._index.check(batch.index_serial, _THIS_BATCH)
        self._check_places(batch)
        key = (plan.run, plan.step)
        self._pending.check_pass_by(key)
        if not self._pending.is_of(key):
            self._check_as_it_was()
            self._pending.let_go()  # its rows may leave their slots
            self._check_no_gradients_over_ranks()
        self._residency.skip(plan)
        self._last = None
        self._pending.pass_by(key)
        if self._exchange is not None and batch.ranks is not None:
            self._exchange.skip(batch.ranks)

    def pending_leaves(self) -> list[Tensor]:
        """Tensors that wait for the step, at most one a row layout; ``.grad`` float32 [rows, dim] is the gradient of
        different rows, and may be scaled in place."""
        return [rows.leaf for rows in self._pending.kept() if rows is not None]

    def hold_gradients(self, norm_type: float, others: float, *, max_norm: float) -> tuple[HeldGradients, float]:
        """Over ranks: gather the gradients of the batch that went forward at their owners now, where the step will find
        them; and :meth:`HeldGradients.total_norm`. On all ranks. RuntimeError where there is no such batch."""
        last = self._last
        if self._exchange is None or last is None or last.batch.ranks is None:
            raise RuntimeError("there are no gradients of a batch over ranks: call stage(batch) in training first")
        steps, kept, exchange, check = last.batch.ranks, self._pending.kept(), self._exchange, self.check_finite
        exchange.check_held(steps.now, grads_of(kept))
        with exchange.whole("clip_grad_norm_"):
            grads = gradients_to_send(exchange, last, kept, self.schema, check_finite=check, to_apply=False)
            held = exchange.hold(steps, grads, AsGathered(grads_of(kept)), alike=check)
            told = held.told_norms(norm_type, others, exchange.norm_channel(steps.now), max_norm=max_norm)
            with exchange.stands(RuntimeError):
                return held, held.total_norm(told, norm_type)

    def add_gradients(self, parts: Iterable[tuple[int, RowKeys, F32]]) -> None:
        """Add what the next step applies, for loops without autograd: of each part (group, rows, grads float32
        [n, dim]) each row once. On an error nothing is added."""
        self._pending.add(
            [(group, with_gradients(keys, torch.from_numpy(grads).to(self.device))) for group, keys, grads in parts]
        )

    def use_index(self, index: object, what: str) -> None:
        """ValueError if `what` comes with another index than the one that the rows are found by; a stage without one
        takes it from the first batch, or from here."""
        self._index.bind(serial_of(index), what)

    def check_index(self, index: object, what: str) -> None:
        """:meth:`use_index`, without taking it."""
        self._index.check(serial_of(index), what)

    def check_nothing_waits(self, what: str) -> None:
        """RuntimeError if gradients wait for a step, which `what` would lose. Those with a NaN or an infinity are none
        to lose: a GradScaler has passed them by."""
        if self._pending.any and self._pending.all_finite:
            raise RuntimeError(
                f"{what} while gradients wait for a step, which would be lost: call it after stage.step(batch) (or "
                "stage.optimizer().step()), or drop them with stage.optimizer().zero_grad()"
            )

    def flush(self) -> None:
        """Make `stores` hold the newest of every row; changes no residency.

        Over ranks it is called on all of them at the same place, as is all that reads or writes rows between steps
        (:meth:`lookup_rows`, :meth:`state_dict`, ``export_table``): the gradients that were put off travel first.
        """
        self._settle()
        self._residency.flush()

    def stats(self) -> dict[str, Any]:
        """Where the time of the training steps went; see :meth:`headrace.embed.step_times.StepTimes.report`.

        Over ranks also `r_changes`: how often rows entered R (`changes`), how many (`rows_entered`), the `seconds` that
        this rank took for it, waits for others included, and the `bytes_sent` to others; else None.
        """
        changes = None if self._exchange is None else vars(self._exchange.hot.changes).copy()
        return {**self._times.report(), "r_changes": changes}

    def close(self, timeout_s: float = 10.0) -> None:
        """End the thread that moves rows, once what it was asked for is done; a RuntimeWarning if that takes longer.

        The stage may be used on, and closed twice. A stage that is not closed ends it when it is collected, or when the
        interpreter ends.
        """
        self._residency.close(check_number("timeout_s", timeout_s))

    def lookup_rows(self, group: int, locations: U64, ids: U64, tables: U32, missing: Bool) -> F32:
        """Newest rows float32 [n, dim + state] of a group; ABSENT or never written: as the row would start. Over ranks
        those that this rank owns; called on all ranks, see :meth:`flush`."""
        self.flush()
        out = np.empty((len(locations), self.stores[group].width), np.float32)
        self.stores[group].read(locations, ids, tables, missing, out, threads=self._threads)
        return out

    def read_vectors(self, group: int, keys: RowKeys) -> F32:
        """Newest vectors float32 [n, dim] of rows of a group; ABSENT or never written: as the row would start. Over
        ranks called on all of them, see :meth:`flush`."""
        self._settle()
        return read_vectors(self._residency.source(group, keys, None), self._threads)

    def write_rows(self, group: int, keys: RowKeys, rows: F32) -> None:
        """Replace rows, each once, by `rows` float32 [n, dim + state], wherever they are. Over ranks called on all of
        them, see :meth:`flush`."""
        self._settle()
        if rows.shape != (len(keys.locations), self.stores[group].width):
            raise ValueError(f"rows of shape {rows.shape} for {len(keys.locations)} of {self.stores[group].width}")
        self._renew_over_ranks()
        self._residency.write(group, keys, rows)

    def forget_rows(self, group: int, locations: U64) -> None:
        """Make rows unwritten, after :meth:`~headrace.indexer.dit.DIT.remove` took their keys away: whichever key comes
        to the place begins as a new row. ABSENT is passed over.

        Between two runs of plans (between epochs): the arenas are written back and emptied. What waits for a step of
        these rows' gradients is dropped, tickets of a :class:`RowDatabase` end, and batches whose ids a loader looked
        up before are refused with RuntimeError, in training and evaluation. RuntimeError over ranks if any gradients
        wait. ValueError for what is no place, or that of a row of another group; then nothing has changed.

        Loading a state refuses no batches: where the index stays as it is, so do their places, and batches that are
        kept may be used on. After the index was restored iterate over the loader anew.
        """
        group = check_integer("group", group, least=0, most=len(self.stores) - 1)
        check_type("locations", locations, np.ndarray, "a uint64 array, as index.remove(columns) gives it")
        if locations.dtype != np.uint64 or locations.ndim != 1:
            raise TypeError(f"locations are {locations.dtype} {list(locations.shape)}, not uint64 [n]")
        self._settle()
        if self._exchange is not None and self._pending.any:
            raise RuntimeError("gradients wait for a step: over ranks rows are forgotten after it")
        self._residency.flush()
        self._check_layout_of(group, locations[locations != ABSENT])
        self._renew_over_ranks()
        self._residency.empty()
        self._last = None
        self._pending.let_go()
        with uninterrupted():
            self._pending.forget(group, locations)
            self._num_replaced += 1
            self._forgot = next_in_order()
            self.stores[group].forget(locations[locations != ABSENT])

    def _check_layout_of(self, group: int, locations: U64) -> None:
        """ValueError for locations that are none, or where rows of another layout were written."""
        for g, store in enumerate(self.stores):
            written = store.is_written(locations)
            if g != group and written.any():
                tables = [", ".join(self.layout.groups[i].tables) for i in (g, group)]
                raise ValueError(
                    f"location {int(locations[written.argmax()]):#x} is that of a row of group {g} ({tables[0]}), not "
                    f"of group {group} ({tables[1]}): index.remove(columns).groups has one entry a group, in the order "
                    "of the stage's stores"
                )

    def state_arrays(self, committed: U64 | None = None) -> dict[str, Array]:
        """Copies of the written rows: ``locations_g`` uint64 [n] ascending and ``rows_g`` float32 [n, dim + state] of
        each group g.

        With `committed`, only rows at these locations. Whose rows they are is told by the index's snapshot. Over ranks
        those that this rank owns; called on all ranks, see :meth:`flush`.
        """
        self.flush()
        state: dict[str, Array] = {}
        for g, store in enumerate(self.stores):
            state[f"locations_{g}"], state[f"rows_{g}"] = store.export(committed)
        return state

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Replace all rows by what :meth:`state_arrays` gave, and empty the arenas; pending gradients are dropped. The
        index of the next batch is the one that the rows are found by.

        ValueError for what :meth:`check_state_arrays` refuses, and MemoryError: then nothing has changed. A call that
        is interrupted later (Ctrl-C) leaves rows of two states; everything but loading one is then a RuntimeError.
        """
        with self.state_to_load(state) as load:
            load()

    @contextmanager
    def state_to_load(
        self, state: Mapping[str, Array], also: Callable[[], None] = lambda: None
    ) -> Iterator[Callable[[], None]]:
        """All of :meth:`load_state_arrays` that may fail is done at the start of the block; the call that it gives does
        the rest, and `also`, which belongs to it. Without it nothing changes."""
        self._settle_to_load()
        self._residency.rest()  # else the thread that moves rows is met in the stores
        self.check_state_arrays(state)
        self._renew_over_ranks()
        over: list[None] = []

        def load() -> None:
            if over:
                raise RuntimeError("a state is loaded once, within the block that it was prepared for")
            over.append(None)
            self._replace_rows(replace, also)

        with ExitStack() as room:
            replace: list[Callable[[], None]] = []
            room.callback(over.append, None)
            for g, store in enumerate(self.stores):
                room.callback(store.drop_prepared)
                replace.append(store.prepare(state[f"locations_{g}"], state[f"rows_{g}"]))
            yield load

    def _replace_rows(self, replace: Sequence[Callable[[], None]], also: Callable[[], None]) -> None:
        self._half_done = "loading a state"
        self._residency.empty()  # may wait for what moves just now
        with uninterrupted():
            self._last = None
            self._num_replaced += 1
            self._pending.clear()
            self._drop_held()
            self._index.free()
            for one in replace:
                one()
            also()
            self._half_done = None

    def check_state_arrays(self, state: Mapping[str, Array]) -> None:
        """ValueError for rows of other groups, shapes or places than this stage's."""
        wanted = {f"{kind}_{g}" for g in range(len(self.stores)) for kind in ("locations", "rows")}
        if set(state) != wanted:
            raise ValueError(f"rows of {sorted(state)} for a stage of {sorted(wanted)}")
        for g, store in enumerate(self.stores):
            store.check_export(state[f"locations_{g}"], state[f"rows_{g}"])

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """All that training on needs beside the index; see :func:`~headrace.embed.stage_state.stage_state`.

        Called by a model that contains the stage: nothing, see the class. Over ranks it has the rows that this rank
        owns, and is called on all ranks, see :meth:`flush`.
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

    def initial_rows(self, dim: int, ids: U64, tables: U32, missing: Bool) -> F32:
        """Vectors float32 [n, dim] that keys (raw id, table uid, missing flag) start from."""
        out = initial_vectors(self.initializer, self.seed, ids, tables, missing, dim)
        for name, one in self.table_initializers.items():
            own = tables == np.uint32(table_uid(name))
            out[own] = initial_vectors(one, self.seed, ids[own], tables[own], missing[own], dim)
        return out

    def _forward(self, batch: Batch) -> Forward:
        """The rows of a batch; in training they are remembered for the step."""
        self._check_whole()
        plan = batch.plan if self.training else None
        last = self._last
        if plan is not None and self._pending.collects and last is not None and self._is_same(last.batch, batch):
            last.check_as_it_was()
            return last
        if plan is not None:
            self._times.begin_step()
        with self._times.of_training("gather", plan is not None):
            bags, keys = checked_bags(batch, self.schema, self.layout.groups, self._kernels)
            self._check_places(batch)
            check_over_ranks(self._exchange, batch)
            self._index.bind(batch.index_serial, _THIS_BATCH)
        if plan is None:
            self.flush()
        else:
            with self._times.of("update"):
                self._check_as_it_was()
                self._pending.let_go()  # also if the batch is refused, which may move rows
            self._warnings.of_waiting(self._pending.num_batches)
            self._check_no_gradients_over_ranks()
            if self._exchange is None:
                self._residency.enter(plan, keys)
        with nullcontext() if self._exchange is None else self._exchange.whole("stage(batch)"):
            return self._enter(batch, bags, keys, plan)

    def _enter(self, batch: Batch, bags: tuple[Bags, ...], keys: Sequence[RowKeys], plan: StepPlan | None) -> Forward:
        """All of a forward that other ranks take part in, to what is remembered of it."""
        with self._times.of_training("gather", plan is not None):
            if self._exchange is not None and batch.ranks is not None:
                rows, sources = enter_from_owners(self._exchange, batch.ranks, keys, plan, self.layout.groups)
                forward = Forward(batch, bags, tuple(rows), tuple(sources))
            else:
                forward = find_rows(batch, bags, keys, plan, self._residency, self._kernels)
        if plan is not None:
            self._last = None
        if self._exchange is not None:
            trains, check = plan is not None, self.check_finite
            check_vectors_alike(self._exchange, forward, self.schema, trains=trains, check_finite=check)
        elif self.check_finite:
            check_finite_vectors(forward, self.schema)
        if plan is not None:
            self._last = forward
            self._pending.collect(forward.rows, (plan.run, plan.step))
            self._warnings.trained()
        else:
            self._warnings.evaluated(batch)
        return forward

    def _check_no_gradients_over_ranks(self) -> None:
        if self._exchange is not None and self._pending.any:
            raise RuntimeError("gradients of an earlier batch wait: over ranks each batch has a step of its own")

    def _apply_over_ranks(self, exchange: RankExchange) -> None:
        """Every rank takes part, with or without gradients of its own, once a batch that went forward."""
        exchange.check_whole()
        last = self._last
        if last is None or last.batch.ranks is None or last.batch.plan is None:
            return
        if self._pending.expects_some and not self._pending.any and last.batch.ranks.now.share:
            raise RuntimeError(
                "a step of a batch that backward gave no row a gradient of (or they were dropped): over ranks it would "
                "update the rows with zeros, which is a step all the same; call stage.skip(batch), on all ranks"
            )
        rules = self._optimizer.rules()
        kept = self._pending.kept()
        exchange.check_held(last.batch.ranks.now, grads_of(kept))
        with exchange.whole("stage.step"):
            exchange.check_options(last.batch.ranks.now, rules)
            grads = gradients_to_send(exchange, last, kept, self.schema, check_finite=self.check_finite)
            self._pending.take()
            self._last = None
            self._optimizer.num_steps += 1
            exchange.apply(last.batch.ranks, grads, rules, last.batch.plan)
        self._times.end_step()

    def _settle(self) -> None:
        """Over ranks: make the updates that were put off until the step to come."""
        self._check_whole()
        if self._exchange is not None:
            self._exchange.settle(_TO_READ_ROWS)

    def _renew_over_ranks(self) -> None:
        """Rows are about to be replaced: over ranks copies of them are under way, or are kept."""
        if self._exchange is not None:
            self._exchange.renew()

    def _drop_held(self) -> None:
        if self._exchange is not None:
            self._exchange.drop_held()

    def _settle_to_load(self) -> None:
        """:meth:`_settle`, also where the rows are no good."""
        if self._half_done is None:
            self._settle()

    def _check_whole(self) -> None:
        if self._half_done is not None:
            raise RuntimeError(
                f"{self._half_done} was interrupted half-way: the stage has rows of two states; load one again "
                "(stage.load_state_dict, or headrace.load_run(path).restore(...))"
            )

    def _is_same(self, last: Batch, batch: Batch) -> bool:
        """Whether `batch`, which may be a copy with other labels, is the one that went forward: of its plan, with its
        ids and weights."""
        if last is batch:
            return True
        if last.plan is not batch.plan:
            return False
        check_batch(batch, self.schema, self.device)
        return all(a is b for a, b in zip(last.groups, batch.groups, strict=True))

    def _check_as_it_was(self) -> None:
        """RuntimeError if the last batch has gradients that wait, and was changed in place since."""
        if self._last is not None and self._pending.has_some_of_last:
            self._last.check_as_it_was()

    def _check_places(self, batch: Batch) -> None:
        if batch.looked_up is not None and batch.looked_up < self._forgot:
            raise RuntimeError(
                "the ids of this batch were looked up before stage.forget_rows: other rows may be in its places; drop "
                "it, and iterate over the loader anew for batches that are looked up now"
            )

    def _drop_pending(self) -> None:
        """What ``optimizer().zero_grad()`` does."""
        self._pending.zero()
        self._drop_held()

    def _apply_pending(self) -> None:
        """What ``optimizer().step()`` does."""
        if self._exchange is not None:
            self._apply_over_ranks(self._exchange)
            return
        self._check_whole()
        if not self._pending.any:
            self._warnings.of_nothing()
            return
        rules = self._optimizer.rules()
        self._check_as_it_was()
        if self.check_finite:
            check_finite_gradients(self._pending.kept(), self._last, self.schema)
        with self._times.of("update"):
            steps = []
            for g, (rows, rule) in enumerate(zip(self._pending.folded(), rules, strict=True)):
                grad = None if rows is None else rows.leaf.grad
                if rows is not None and grad is not None:
                    steps.append((g, rows.keys, rows.slots, grad, rule))
            alone = len(steps) == 1
            updates = [self._residency.prepare_update(*step, alone=alone) for step in steps]  # may be out of memory
            with uninterrupted():
                for update in updates:
                    update()
                    self._half_done = "a step"
                self._pending.take()
                self._last = None
                self._optimizer.num_steps += 1
                self._half_done = None
        self._warnings.stepped()
        self._times.end_step()


def _is_split(last: StepPlan | None, plan: StepPlan) -> bool:
    """Whether both are of one step, and of other rows of its batch."""
    return last is not None and last is not plan and (last.run, last.step) == (plan.run, plan.step)
