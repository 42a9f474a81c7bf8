"""A batch of one rank between index and trainer, with what the step is over all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from headrace.formats.rows import Source
from headrace.indexer.indexed import IndexedGroup
from headrace.ingest.array_pool import ArrayPool
from headrace.ingest.batch import Batch
from headrace.ingest.indexed_rows import I64, IndexedRows
from headrace.ingest.rank_step import RankStep, RankSteps
from headrace.ingest.step_plan import FetchKeys, StepPlan


@dataclass(frozen=True)
class RankRows:
    """What :class:`IndexedRows` is for one process, over ranks.

    `rows` is this rank's own batch; `groups` are the rows that this rank owns of the step, which its arena and its plan
    are of. `valid_rows` are those of the batch that are no padding.
    """

    rows: IndexedRows
    groups: tuple[IndexedGroup, ...]
    step: RankStep
    valid_rows: int

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows

    @property
    def nbytes(self) -> int:
        owned = sum(g.locations.nbytes + g.unique_ids.nbytes + g.missing.nbytes for g in self.groups)
        return self.rows.nbytes + owned + sum(g.slots.nbytes + g.order.nbytes for g in self.step.groups)

    @property
    def source(self) -> Source:
        return self.rows.source

    def unique_keys(self) -> list[FetchKeys]:
        """For each group the keys of the rows owned here."""
        return [group.owned.keys for group in self.step.owning]

    def keys_of(self, group: int, unique: I64) -> FetchKeys:
        keys = self.step.owning[group].owned.keys
        return FetchKeys(ids=keys.ids[unique], tables=keys.tables[unique], missing=keys.missing[unique])

    def to_batch(self, plan: StepPlan | None, following: object = None, pool: ArrayPool | None = None) -> Batch:
        """The batch as the trainer receives it; slots are places in the inbox."""
        batch = self.rows.to_batch(None, pool=pool)
        pairs = zip(batch.groups, self.step.groups, strict=True)
        groups = tuple(replace(group, slots=torch.from_numpy(own.slots)) for group, own in pairs)
        ranks = RankSteps(self.step, following.step if isinstance(following, RankRows) else None)
        return replace(batch, groups=groups, valid=self._valid, plan=plan, ranks=ranks)

    @cached_property
    def _valid(self) -> torch.Tensor | None:
        if self.valid_rows == self.num_rows:
            return None
        return torch.from_numpy(np.arange(self.num_rows) < self.valid_rows)


def padded(rows: IndexedRows, num_rows: int) -> IndexedRows:
    """`rows` with rows of zeros without ids behind them, up to `num_rows`."""
    more = num_rows - rows.num_rows
    if more <= 0:
        return rows
    dense = np.concatenate([rows.dense, np.zeros((more, rows.dense.shape[1]), np.float32)])
    labels = rows.labels
    if labels is not None:
        labels = np.concatenate([labels, np.zeros((more, *labels.shape[1:]), np.float32)])
    lengths = []
    for layout, old in zip(rows.schema.groups, rows.lengths, strict=True):
        features = len(layout.features)
        own = np.ones((features, rows.num_rows), np.int32) if old is None else old.reshape(features, rows.num_rows)
        lengths.append(np.concatenate([own, np.zeros((features, more), np.int32)], axis=1).reshape(-1))
    return replace(rows, dense=dense, labels=labels, lengths=tuple(lengths))
