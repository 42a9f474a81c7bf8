"""What a batch must be so that the stage can work on it."""

from __future__ import annotations

import torch

from headrace.embed.finite import key_name
from headrace.embed.row_keys import RowKeys
from headrace.formats.schema import Schema
from headrace.formats.schema_difference import differences, same_rows
from headrace.indexer.indexed import ABSENT
from headrace.ingest.batch import Batch, BatchGroup
from headrace.ingest.step_plan import GroupPlan

HOST = torch.device("cpu")


def check_batch(batch: Batch, schema: Schema, device: torch.device = HOST) -> None:
    """ValueError unless `batch` is of `schema` (without a plan: but for the labels) and on the host or on the stage's
    `device`, and its plan is of the schema's groups and its rows."""
    if batch.schema is not schema and not _fits(batch, schema):
        what = differences(batch.schema, schema, ("the batch", "the stage"), labels=batch.plan is not None)
        raise ValueError(
            f"a batch of another schema than the stage's: {what}. Columns, tables, dims, optimizers and poolings must "
            "be the same, in training the labels too; give both the same Schema"
        )
    if batch.plan is not None and len(batch.plan.groups) != len(schema.groups):
        raise ValueError(f"a plan of {len(batch.plan.groups)} groups for a stage of {len(schema.groups)}")
    for number, group in enumerate(batch.groups):
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


def _on_another_device(there: torch.device, device: torch.device) -> str:
    if device != HOST:
        return f"the ids of the batch are on {there}, and the stage's rows on {device}"
    return (
        f"the ids of the batch are on {there}, and the stage works on the host: pass the batch as the loader gave it, "
        "and move the stage's output (and batch.dense, batch.labels) to the device"
    )


def _check_plan(part: GroupPlan, rows: int, number: int) -> None:
    if len(part.slots) != rows:
        raise ValueError(f"group {number}: a plan of {len(part.slots)} rows for a batch of {rows}")


def _check_indexed(group: BatchGroup, number: int, schema: Schema) -> None:
    absent = group.locations.cpu().numpy() == ABSENT
    if absent.any():
        name = key_name(schema, RowKeys.of(group), int(absent.argmax()))
        raise ValueError(f"{name} of a planned batch has no row: the batch was only looked up, not indexed")
