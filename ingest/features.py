"""The ids of a feature as the index takes them: read or derived, modulo, under the missing policy, cut to length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema, Side, Sparse
from headrace.ingest.columns import Ragged, column_mask, column_values, id_column, one_hot, with_policy
from headrace.ingest.derived_ids import Bool, bucket_ids, cross_ids


def feature_column(block: RowBlock, schema: Schema, feature: Sparse, table: int) -> Ragged:
    """Ids of one feature of a block under everything that the schema says of it.

    Raises what :func:`id_column` raises.
    """
    if feature.derived:
        ids, missing = one_hot_ids(block, schema, feature)
        return with_policy(block, feature, ids, missing, table)
    ragged = id_column(block, feature, table)
    if feature.modulo is not None:
        values = _modulo(ragged.column.values, feature)  # type: ignore[arg-type]
        ragged = replace(ragged, column=replace(ragged.column, values=values))
    return ragged if feature.max_length is None else cut(ragged, feature.max_length, feature.keep)


def one_hot_ids(block: RowBlock, schema: Schema, feature: Sparse) -> tuple[npt.NDArray[Any], Bool | None]:
    """(ids [B], missing [B] or None) of a feature with one id a row; missing ids of ``missing="zero"`` are 0."""
    if feature.cross:
        named = {s.name: s for s in schema.sparse}
        parts = [one_hot_ids(block, schema, named[part]) for part in feature.cross]
        ids: npt.NDArray[Any] = cross_ids(parts)
        missing = None if feature.missing in ("key", "zero") else _any(mask for _, mask in parts)
    elif feature.bucket_of:
        values, missing = column_values(block, feature.bucket_of), column_mask(block, feature.bucket_of)
        if missing is not None:
            values = np.where(missing, values.dtype.type(0), values)  # anything may stand under a null
        ids = bucket_ids(values, feature.boundaries, feature.bucketing)
    else:
        ids, missing = one_hot(block, feature)
    if feature.modulo is not None:
        ids = _modulo(ids, feature)
    if missing is not None and feature.missing == "zero":
        ids, missing = np.where(missing, ids.dtype.type(0), ids), None
    return ids, missing


def _any(masks: Any) -> Bool | None:
    found: Bool | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else found | mask
    return found


def _modulo(values: npt.NDArray[Any], feature: Sparse) -> npt.NDArray[Any]:
    """Of the number that an id stands for: of a signed one the remainder is not negative, as Python's is."""
    assert feature.modulo is not None
    if feature.encoding == "int64":
        signed = values.view(np.int64)
        if feature.modulo > np.iinfo(np.int64).max:
            return np.where(signed < 0, values + np.uint64(feature.modulo), values)
        values = (signed % np.int64(feature.modulo)).view(np.uint64)
    elif feature.modulo <= np.iinfo(values.dtype).max:
        values = values % values.dtype.type(feature.modulo)
    return values


def cut(ragged: Ragged, max_length: int, keep: Side) -> Ragged:
    """The first or last `max_length` ids of each row, in their order."""
    lengths = ragged.lengths
    if lengths is None or lengths.max(initial=0) <= max_length:
        return ragged
    ends = np.cumsum(lengths, dtype=np.int64)
    kept = np.minimum(lengths, np.int32(max_length))
    place = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)  # of an id in its row
    first = (lengths - kept) if keep == "last" else np.zeros(len(lengths), np.int32)
    chosen = (place >= np.repeat(first, lengths)) & (place < np.repeat(first + kept, lengths))
    values, missing = ragged.column.values, ragged.column.missing
    column = replace(
        ragged.column,
        values=np.asarray(values)[chosen],
        missing=None if missing is None else missing[chosen],
    )
    return Ragged(column, kept)
