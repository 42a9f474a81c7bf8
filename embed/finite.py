"""Finding the raw id and the row behind a value that is not finite."""

from __future__ import annotations

import numpy as np

from headrace.embed.arrays import F32
from headrace.embed.pooling import Bags
from headrace.ingest.batch import Batch, BatchGroup


def check_finite(kind: str, values: F32, batch: Batch, group: BatchGroup, bags: Bags) -> None:
    """Raise FloatingPointError for the first unique row of values float32 [U, dim] with a NaN or an infinity.

    The message names the feature, the raw id, and file and row of a batch row that uses it.
    """
    finite = np.isfinite(values).all(axis=1)
    if finite.all():
        return
    unique = int(np.flatnonzero(~finite)[0])
    raw = "the missing value" if bool(group.missing[unique]) else f"id {int(group.unique_ids.numpy()[unique])}"
    raise FloatingPointError(f"{kind} of {raw} is not finite: {_where(unique, batch, bags)}")


def _where(unique: int, batch: Batch, bags: Bags) -> str:
    begin, end = bags.position_offsets[unique], bags.position_offsets[unique + 1]
    if begin == end:
        return "no row of the batch uses it"
    position = bags.positions[begin]
    bag = int(np.searchsorted(bags.offsets, position, side="right")) - 1
    feature, row = divmod(bag, batch.num_rows)
    file, line = batch.locate(row)
    return f"feature {bags.layout.features[feature]!r}, batch row {row}, row {line} of {file}"
