"""What a batch must be so that the stage can work on it."""

from __future__ import annotations

import numpy as np
import torch

from headrace.embed.finite import key_name
from headrace.embed.row_keys import RowKeys
from headrace.formats.checks import check_type
from headrace.formats.schema import Schema
from headrace.formats.schema_difference import differences, same_rows
from headrace.indexer.indexed import ABSENT
from headrace.ingest.batch import Batch, BatchGroup
from headrace.ingest.rank_step import RankSteps
from headrace.ingest.step_plan import GroupPlan, StepPlan

HOST = torch.device("cpu")

_AS_GIVEN = "{}, as the loader gave it"

_FIELDS = {
    "query_ids": (torch.int64, "ids"),
    "lengths": (torch.int32, "bags"),
    "offsets": (torch.int64, "bags + 1"),
    "unique_ids": (torch.uint64, "unique rows"),
    "unique_tables": (torch.uint32, "unique rows"),
    "missing": (torch.bool, "unique rows"),
    "locations": (torch.uint64, "unique rows"),
    "positions": (torch.int64, "ids"),
    "position_offsets": (torch.int64, "unique rows + 1"),
    "slots": (torch.int64, "unique rows"),
}
"""dtype of a group's fields, and what each has as many values as."""


def check_batch(batch: Batch, schema: Schema, device: torch.device = HOST) -> None:
    """ValueError unless `batch` is of `schema` (without a plan: but for the labels) and on the host or on the stage's
    `device`, and its plan is of the schema's groups and its rows; TypeError for fields of other types.

    Of every field that a group has dtype and length are looked at, in every mode; values where the stage goes by them:
    query ids, offsets and tables, positions where features are sequences or the kernels torch's (see
    :func:`headrace.embed.pooling.bags_of`), locations, and slots in the arena. Nobody looks at those of `lengths`, of
    the group's own `slots` (the plan's count), at `labels` and `valid`, at `hot` and `urgent` of a plan, and at whether
    `positions` is the transpose of `query_ids`.
    """
    check_type("batch.schema", batch.schema, Schema, _AS_GIVEN.format("a headrace.Schema"))
    if batch.schema is not schema and not _fits(batch, schema):
        what = differences(batch.schema, schema, ("the batch", "the stage"), labels=batch.plan is not None)
        raise ValueError(
            f"a batch of another schema than the stage's: {what}. Columns, tables, dims, optimizers and poolings must "
            "be the same, in training the labels too; give both the same Schema"
        )
    check_type("batch.dense", batch.dense, torch.Tensor, _AS_GIVEN.format("a tensor [B, dense columns]"))
    check_type("batch.plan", batch.plan, (StepPlan, type(None)), _AS_GIVEN.format("a headrace.StepPlan"))
    check_type("batch.ranks", batch.ranks, (RankSteps, type(None)), _AS_GIVEN.format("what a loader over ranks gives"))
    if len(batch.groups) != len(schema.groups):
        raise ValueError(f"a batch of {len(batch.groups)} groups for a stage of {len(schema.groups)}")
    if batch.plan is not None and len(batch.plan.groups) != len(schema.groups):
        raise ValueError(f"a plan of {len(batch.plan.groups)} groups for a stage of {len(schema.groups)}")
    for number, group in enumerate(batch.groups):
        _check_fields(group, number, batch)
        there = group.query_ids.device
        if there.type != "cpu" and there != device:
            raise ValueError(_on_another_device(there, device))
        if batch.plan is not None:
            rows = group.num_unique if batch.ranks is None else len(batch.ranks.now.owning[number].owned.locations)
            _check_plan(batch.plan.groups[number], rows, number)
            if batch.ranks is None:  # else rows of other ranks have no location here
                _check_indexed(group, number, schema)


def _fits(batch: Batch, schema: Schema) -> bool:
    """Rows that are only scored need no labels."""
    return same_rows(batch.schema, schema) if batch.plan is None else batch.schema == schema


def _check_fields(group: BatchGroup, number: int, batch: Batch) -> None:
    """TypeError, or ValueError, for a field that is no tensor, or of another dtype or length than it must be."""
    check_type(f"group {number}", group, BatchGroup, _AS_GIVEN.format("a headrace.BatchGroup"))
    _check_tensor(group.query_ids, number, "query_ids", "a tensor")
    _check_tensor(group.unique_ids, number, "unique_ids", "a tensor")
    bags, ids, unique = group.num_features * batch.num_rows, group.query_ids.numel(), group.unique_ids.numel()
    sizes = {"ids": ids, "bags": bags, "bags + 1": bags + 1, "unique rows": unique, "unique rows + 1": unique + 1}
    for name, (dtype, counts) in _FIELDS.items():
        field = getattr(group, name)
        if not _is(field, dtype, sizes[counts]):
            _check_tensor(field, number, name, "a tensor")
            _check_field(field, number, name, dtype, counts, sizes[counts])
    if group.weights is not None:
        _check_tensor(group.weights, number, "weights", "a tensor, or None")
        _check_field(group.weights, number, "weights", torch.float32, "ids", ids)
        if group.weights.requires_grad:
            raise ValueError(
                f"group {number}: weights need a gradient, which the stage does not give: pass weights.detach(); to "
                "train them weigh the vectors that forward_sequences gives of a feature with pooling 'none'"
            )


def _is(field: object, dtype: torch.dtype, size: int) -> bool:
    """Whether nothing is wrong with a field. No more than that: the caches are cold when this runs."""
    return isinstance(field, torch.Tensor) and field.dtype is dtype and field.shape == (size,) and field.is_contiguous()


def _check_tensor(field: object, number: int, name: str, wanted: str) -> None:
    if not isinstance(field, torch.Tensor):
        check_type(f"group {number}: {name}", field, torch.Tensor, _AS_GIVEN.format(wanted))


def _check_field(field: torch.Tensor, number: int, name: str, dtype: torch.dtype, counts: str, size: int) -> None:
    if field.dtype != dtype or field.shape != (size,):
        raise ValueError(
            f"group {number}: {name} is {_named(field.dtype)} {list(field.shape)}, not {_named(dtype)} [{size}] "
            f"({counts}); a batch is passed as the loader gave it"
        )
    if not field.is_contiguous():
        raise ValueError(f"group {number}: {name} is not contiguous in memory: pass {name}.contiguous()")


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _on_another_device(there: torch.device, device: torch.device) -> str:
    if device != HOST:
        return f"the ids of the batch are on {there}, and the stage's rows on {device}"
    return (
        f"the ids of the batch are on {there}, and the stage works on the host: pass the batch as the loader gave it, "
        "and move the stage's output (and batch.dense, batch.labels) to the device"
    )


def _check_plan(part: GroupPlan, rows: int, number: int) -> None:
    slots = part.slots
    check_type(f"group {number}: slots of the plan", slots, np.ndarray, _AS_GIVEN.format("an array int64"))
    if slots.dtype != np.int64 or slots.ndim != 1:
        raise ValueError(f"group {number}: slots of the plan are {slots.dtype} {list(slots.shape)}, not int64 [{rows}]")
    if len(part.slots) != rows:
        raise ValueError(f"group {number}: a plan of {len(part.slots)} rows for a batch of {rows}")


def _check_indexed(group: BatchGroup, number: int, schema: Schema) -> None:
    locations = group.locations.cpu().numpy()
    if len(locations) and locations.max() == ABSENT:  # the largest of all numbers
        name = key_name(schema, RowKeys.of(group), int(locations.argmax()))
        raise ValueError(f"{name} of a planned batch has no row: the batch was only looked up, not indexed")
