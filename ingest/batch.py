"""The batch that the trainer receives: already indexed, already planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from headrace.formats.rows import Source
from headrace.formats.schema import Schema
from headrace.ingest.rank_step import RankSteps
from headrace.ingest.step_plan import StepPlan

if TYPE_CHECKING:
    from headrace.ingest.hot_split import SplitBatch

Ids = Literal["slot", "raw"]
"""Which ids a conversion gives: positions in the arena, or raw ids."""

BagInputs = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""(input, offsets), and per-sample weights where there are any."""


@dataclass(frozen=True, repr=False)
class BatchGroup:
    """The ids of one row layout; F features, B rows, U unique rows, nnz ids.

    =================== =================== ==============================================================
    `features`          F ints              positions in the schema's sparse columns
    `query_ids`         int64 [nnz]         feature-major; 0 <= q < U, position in the unique rows
    `lengths`           int32 [F·B]         ids of each bag, feature-major
    `offsets`           int64 [F·B + 1]     running sum of lengths; also for an empty batch
    `weights`           float32 [nnz]|None  per-sample weights
    `unique_ids`        uint64 [U]          raw ids
    `unique_tables`     uint32 [U]          table uids
    `missing`           bool [U]            the row of a missing value
    `locations`         uint64 [U]          where each unique row lives in host memory; ABSENT if evaluation
                                            met a key that has no row
    `positions`         int64 [nnz]         transpose: where each unique row occurs in `query_ids`, ascending
    `position_offsets`  int64 [U + 1]       unique row u occurs at positions[position_offsets[u]:[u + 1]]
    `slots`             int64 [U]           slot in the device arena; -1 everywhere without a plan
    =================== =================== ==============================================================
    """

    features: tuple[int, ...]
    query_ids: Tensor
    lengths: Tensor
    offsets: Tensor
    weights: Tensor | None
    unique_ids: Tensor
    unique_tables: Tensor
    missing: Tensor
    locations: Tensor
    positions: Tensor
    position_offsets: Tensor
    slots: Tensor

    def __repr__(self) -> str:
        return f"BatchGroup({self.num_features} features, {self.query_ids.numel()} ids, {self.num_unique} unique rows)"

    @property
    def num_features(self) -> int:
        return len(self.features)

    @property
    def num_unique(self) -> int:
        return self.slots.numel()


@dataclass(frozen=True, repr=False)
class Batch:
    """A mini-batch of B rows.

    `dense` float32 [B, n_dense], always finite; `labels` float32 [B] (one label column), [B, n_labels], or None;
    `valid` bool [B] or None (False for padding rows); `plan` is None for evaluation batches; `groups` follow
    ``schema.groups``; by `ticket` the index commits the rows that this batch brought, once it is delivered;
    `ranks` is what the step is over several ranks, None for one process; `index_serial` is the number of the index
    (:attr:`headrace.DIT.serial`) whose places the locations are, `looked_up` when they were found
    (:mod:`headrace.indexer.lookup_order`), None where that is not known.
    """

    dense: Tensor
    labels: Tensor | None
    groups: tuple[BatchGroup, ...]
    valid: Tensor | None
    plan: StepPlan | None
    source: Source
    schema: Schema
    ticket: int | None = None
    ranks: RankSteps | None = None
    index_serial: int | None = None
    looked_up: int | None = None

    @property
    def num_rows(self) -> int:
        return self.dense.shape[0]

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        labels = "no labels" if self.labels is None else f"labels {tuple(self.labels.shape)}"
        step = "no plan" if self.plan is None else f"step {self.plan.step} of run {self.plan.run}"
        return f"Batch({self.num_rows} rows, dense {tuple(self.dense.shape)}, {labels}, {list(self.groups)}, {step})"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        tensors = [t for item in (self, *self.groups) for t in vars(item).values() if isinstance(t, Tensor)]
        return sum(t.nbytes for t in tensors)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch with its tensors on `device`; plan and source stay plain host data."""
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The batch with its tensors in page-locked memory (needs an accelerator)."""
        return self._map(lambda t: t.pin_memory())

    def record_stream(self, stream: Any) -> None:
        """Tell the caching allocator that `stream` uses the batch's tensors."""

        def record(tensor: Tensor) -> Tensor:
            tensor.record_stream(stream)
            return tensor

        self._map(record)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the schema's sparse columns."""
        return tuple(s.name for s in self.schema.sparse)

    @property
    def group_feature_names(self) -> tuple[str, ...]:
        """Names of the features in the order of the groups' arrays."""
        return tuple(self.feature_names[f] for g in self.groups for f in g.features)

    def locate(self, row: int) -> tuple[str, int]:
        """(file, 0-based row in the file) of batch row `row`."""
        return self.source.locate(row)

    def to_embedding_bag_inputs(self, *, ids: Ids, missing_id: int | None = None) -> dict[str, BagInputs]:
        """For each feature what `torch.nn.EmbeddingBag` is called with, ``bag(*inputs)``: (input, offsets), and
        per_sample_weights where its row layout has any; see :mod:`headrace.ingest.batch_forms`."""
        from headrace.ingest.batch_forms import to_embedding_bag_inputs

        return to_embedding_bag_inputs(self, ids=ids, missing_id=missing_id)

    def to_kjt(self, *, ids: Ids, missing_id: int | None = None) -> Any:
        """A TorchRec KeyedJaggedTensor (torchrec is imported here only); see :mod:`headrace.ingest.batch_forms`."""
        from headrace.ingest.batch_forms import to_kjt

        return to_kjt(self, ids=ids, missing_id=missing_id)

    def split_hot(self) -> SplitBatch:
        """The samples whose rows are all hot (pinned), and the rest, as two micro-batches of one step.

        Both go through the stage, in any order, before one ``stage.optimizer().step()``, which applies the gradients of
        both to each row once::

            parts = batch.split_hot()
            for part in parts.parts:
                loss_sum(model(part.dense, stage(part)), part.labels).div(batch.num_rows).backward()
            stage.optimizer().step()

        The step is that of the whole batch, with one difference: a row that both use gets the sum of two sums, in the
        order in which the parts went forward, so that parameters agree to rounding, not to the bit. The movements of
        the plan are done once, with the first part. ValueError without a plan, or off the host.
        """
        from headrace.ingest.hot_split import split_hot

        return split_hot(self)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        groups = tuple(_map_tensors(g, function) for g in self.groups)
        return replace(_map_tensors(self, function), groups=groups)


_Item = TypeVar("_Item", Batch, BatchGroup)


def _map_tensors(item: _Item, function: Callable[[Tensor], Tensor]) -> _Item:
    values: dict[str, Any] = {f.name: getattr(item, f.name) for f in fields(item)}
    changed: dict[str, Any] = {k: function(v) for k, v in values.items() if isinstance(v, Tensor)}
    return replace(item, **changed)
