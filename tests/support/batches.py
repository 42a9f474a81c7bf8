"""What tests compare batches by."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import numpy as np
from torch import Tensor

from headrace import Batch


def raw_ids(batch: Batch) -> list[list[int | None]]:
    """Per feature, the raw id of each row (None where missing); one-hot features of one row layout."""
    out = []
    for group in batch.groups:
        ids = group.unique_ids.numpy()[group.query_ids.numpy()]
        missing = group.missing.numpy()[group.query_ids.numpy()]
        for part, lost in zip(np.split(ids, group.num_features), np.split(missing, group.num_features), strict=True):
            out.append([None if m else int(i) for i, m in zip(part, lost, strict=True)])
    return out


def digest(batch: Batch, *, without: frozenset[str] = frozenset()) -> str:
    """Digest of a batch's tensors, those named in `without` aside, and of its rows' origin."""
    state = hashlib.sha256()
    for tensor in (batch.dense, batch.labels):
        state.update(b"-" if tensor is None else tensor.numpy().tobytes())
    for group in batch.groups:
        for field in fields(group):
            value = getattr(group, field.name)
            if isinstance(value, Tensor) and field.name not in without:
                state.update(f"{field.name}{value.dtype}{tuple(value.shape)}".encode() + value.numpy().tobytes())
    for array in batch.source.arrays():
        state.update(array.tobytes())
    return state.hexdigest()
