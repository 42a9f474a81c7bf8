"""A batch as two micro-batches: the samples whose rows are all hot, and the rest (Hotline, ISCA'24, arXiv:2204.05436).

The rows of the first are pinned in the arena, so that it need not wait for any movement of its step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.ingest.batch import Batch, BatchGroup
from headrace.ingest.step_plan import GroupPlan, StepPlan
from headrace.ingest.transpose import transpose_query_ids

Bool = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SplitBatch:
    """The two parts of a batch of B rows; either may have no rows, but has all fields.

    `permutation` int64 [B]: row i of the parts, one after the other (`hot` first), is row ``permutation[i]`` of the
    whole. Rows keep their order within a part. A row without any id is hot.
    """

    hot: Batch
    cold: Batch
    permutation: Tensor

    @property
    def parts(self) -> tuple[Batch, ...]:
        """Those that have rows, `hot` first."""
        return tuple(part for part in (self.hot, self.cold) if part.num_rows)

    def restore(self, hot: Tensor, cold: Tensor) -> Tensor:
        """[B, ...]: what the two parts gave, in the order of the whole batch's rows."""
        joined = torch.cat([hot, cold])
        return torch.empty_like(joined).index_copy(0, self.permutation.to(joined.device), joined)


def split_hot(batch: Batch) -> SplitBatch:
    """See :meth:`headrace.Batch.split_hot`."""
    plan = batch.plan
    if plan is None:
        raise ValueError("split_hot() of a batch without a plan: only a plan knows which rows are hot")
    if batch.dense.device.type != "cpu":
        raise ValueError(f"split_hot() of a batch on {batch.dense.device}: split it before it is moved")
    hot = np.ones(batch.num_rows, np.bool_)
    for group, part in zip(batch.groups, plan.groups, strict=True):
        hot &= _all_hot(group, part.hot, batch.num_rows)
    first, rest = np.flatnonzero(hot), np.flatnonzero(~hot)
    return SplitBatch(
        hot=_part(batch, plan, first),
        cold=_part(batch, plan, rest),
        permutation=torch.from_numpy(np.concatenate([first, rest])),
    )


def _all_hot(group: BatchGroup, hot: Bool, num_rows: int) -> Bool:
    """bool [B]: whether a sample has no cold row in the group. hot: bool [U]"""
    cold = np.concatenate([[0], np.cumsum(~hot[group.query_ids.numpy()])])  # cold ids before each position
    ends = cold[group.offsets.numpy()]
    found: Bool = (np.diff(ends).reshape(group.num_features, num_rows) == 0).all(axis=0)
    return found


def _part(batch: Batch, plan: StepPlan, rows: I64) -> Batch:
    """Rows `rows` int64 [n] of a batch; of its unique rows those that they use."""
    groups, plans = [], []
    for group, part in zip(batch.groups, plan.groups, strict=True):
        one, used = _part_of_group(group, rows, batch.num_rows)
        groups.append(one)
        plans.append(_part_of_plan(part, used))
    at = torch.from_numpy(rows)
    return replace(
        batch,
        dense=batch.dense[at],
        labels=None if batch.labels is None else batch.labels[at],
        groups=tuple(groups),
        valid=None if batch.valid is None else batch.valid[at],
        plan=replace(plan, groups=tuple(plans)),
        source=batch.source.take(rows),
        ticket=None,
    )


def _part_of_plan(plan: GroupPlan, used: I64) -> GroupPlan:
    """The whole step's movements, and where the unique rows at `used` are."""
    return replace(plan, slots=plan.slots[used], hot=plan.hot[used], urgent=plan.urgent[used])


def _part_of_group(group: BatchGroup, rows: I64, num_rows: int) -> tuple[BatchGroup, I64]:
    """(the bags of some rows, which unique rows they use: int64 [U'], ascending)."""
    lengths = group.lengths.numpy().reshape(group.num_features, num_rows)
    chosen = np.zeros(num_rows, np.bool_)
    chosen[rows] = True
    kept = np.repeat(np.tile(chosen, group.num_features), lengths.reshape(-1))  # bool [nnz]
    query_ids = group.query_ids.numpy()[kept]
    is_used = np.zeros(group.num_unique, np.bool_)
    is_used[query_ids] = True
    used = np.flatnonzero(is_used)
    compact = (np.cumsum(is_used) - 1).astype(np.uint32)[query_ids]
    query_ids, positions, position_offsets = transpose_query_ids(compact, len(used))
    part_lengths = np.ascontiguousarray(lengths[:, rows]).reshape(-1)
    offsets = np.zeros(len(part_lengths) + 1, np.int64)
    np.cumsum(part_lengths, out=offsets[1:])
    return (
        BatchGroup(
            features=group.features,
            query_ids=torch.from_numpy(query_ids),
            lengths=torch.from_numpy(part_lengths),
            offsets=torch.from_numpy(offsets),
            weights=None if group.weights is None else group.weights[torch.from_numpy(kept)],
            unique_ids=_at(group.unique_ids, used),
            unique_tables=_at(group.unique_tables, used),
            missing=_at(group.missing, used),
            locations=_at(group.locations, used),
            positions=torch.from_numpy(positions),
            position_offsets=torch.from_numpy(position_offsets),
            slots=_at(group.slots, used),
        ),
        used,
    )


def _at(values: Tensor, positions: I64) -> Tensor:
    return torch.from_numpy(values.numpy()[positions])  # torch does not index unsigned words
