"""What a batch must be so that the stage can work on it."""

from __future__ import annotations

from headrace.formats.schema import Schema
from headrace.ingest.batch import Batch


def check_batch(batch: Batch, schema: Schema) -> None:
    """ValueError unless `batch` is of `schema` and on the host, and its plan has the schema's groups."""
    if batch.schema is not schema and batch.schema != schema:
        raise ValueError(
            f"a batch of another schema (features {', '.join(batch.feature_names)}) than the stage's: columns, tables, "
            "dims, optimizers and poolings must be the same; give both the same Schema"
        )
    if batch.plan is not None and len(batch.plan.groups) != len(schema.groups):
        raise ValueError(f"a plan of {len(batch.plan.groups)} groups for a stage of {len(schema.groups)}")
    for group in batch.groups:
        device = group.query_ids.device
        if device.type != "cpu":
            raise ValueError(
                f"the ids of the batch are on {device}, and the stage works on the host: pass the batch as the loader "
                "gave it, and move the stage's output (and batch.dense, batch.labels) to the device"
            )
