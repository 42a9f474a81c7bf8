"""Finding the table, the raw id and the row behind a value that is not finite."""

from __future__ import annotations

import numpy as np

from headrace.embed.arrays import F32, U64
from headrace.embed.pooling import Bags
from headrace.embed.row_keys import RowKeys
from headrace.formats.schema import Schema
from headrace.ingest.batch import Batch


def check_finite(
    kind: str,
    values: F32,
    keys: RowKeys,
    schema: Schema,
    batch: Batch | None = None,
    bags: Bags | None = None,
    *,
    hint: str = "",
) -> None:
    """Raise FloatingPointError for the first of values float32 [n, dim] with a NaN or an infinity.

    The message names the table, the raw id and, if `batch` (with the `bags` of the group) has the row, the feature and
    file and row of a batch row that uses it.
    """
    at = first_not_finite(values)
    if at is None:
        return
    where = "" if batch is None or bags is None else use_of(keys.locations[at : at + 1], batch, bags)
    raise FloatingPointError(f"{kind} of {key_name(schema, keys, at)} is not finite{where}{hint}")


def first_not_finite(values: F32) -> int | None:
    """The first of values float32 [n, dim] with a NaN or an infinity, or None."""
    finite = np.isfinite(values).all(axis=1)
    return None if finite.all() else int(np.flatnonzero(~finite)[0])


def key_name(schema: Schema, keys: RowKeys, at: int) -> str:
    """The key at position `at`, for messages."""
    uid = int(keys.tables[at])
    table = next((repr(table.name) for table in schema.tables if table.uid == uid), f"with uid {uid:#x}")
    raw = "the missing value" if bool(keys.missing[at]) else f"id {int(keys.ids[at])}"
    return f"{raw} of table {table}"


def use_of(location: U64, batch: Batch, bags: Bags) -> str:
    """The first use of the row at `location` [1] in the batch; over ranks a row's place in it stands for that."""
    if batch.ranks is not None:
        return _first_use(int(location[0]), batch, bags)
    for group in batch.groups:
        if tuple(batch.feature_names[f] for f in group.features) != bags.layout.features:
            continue
        found = np.flatnonzero(group.locations.cpu().numpy() == location)
        return _first_use(int(found[0]), batch, bags) if len(found) else ": its batch is not the last one"
    return ""


def _first_use(unique: int, batch: Batch, bags: Bags) -> str:
    positions = np.flatnonzero(bags.query_ids == unique)
    if not len(positions):
        return ": no row of the batch uses it"
    position = positions[0]
    bag = int(np.searchsorted(bags.offsets, position, side="right")) - 1
    feature, row = divmod(bag, batch.num_rows)
    file, line = batch.locate(row)
    return f": feature {bags.layout.features[feature]!r}, batch row {row}, row {line} of {file}"
