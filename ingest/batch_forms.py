"""A batch in the forms that other embedding modules take."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from headrace.formats.checks import check_integer
from headrace.ingest.batch import BagInputs, Batch, BatchGroup, Ids


def to_embedding_bag_inputs(batch: Batch, *, ids: Ids, missing_id: int | None = None) -> dict[str, BagInputs]:
    """For each feature (input int64 [nnz_f], offsets int64 [B]), for ``bag(*inputs)`` of a `torch.nn.EmbeddingBag`.

    A feature of a row layout with weights has a third item, per_sample_weights float32 [nnz_f], in the same order.

    ``ids="slot"`` gives positions in the arena (the batch must have a plan), ``ids="raw"`` the raw ids with their bits
    reinterpreted as int64 and `missing_id` (an integer, with its bits too) for missing values. Raises ValueError where
    that cannot be said, and for weights that are not float32, one an id.
    """
    out: dict[str, BagInputs] = {}
    names = iter(batch.group_feature_names)
    for number, group in enumerate(batch.groups):
        values, weights = _values(group, ids, missing_id), _checked_weights(group, number)
        for feature in range(group.num_features):
            begin, end = feature * batch.num_rows, (feature + 1) * batch.num_rows
            first, last = int(group.offsets[begin]), int(group.offsets[end])
            inputs = values[first:last], group.offsets[begin:end] - first
            out[next(names)] = inputs if weights is None else (*inputs, weights[first:last])
    return out


def to_kjt(batch: Batch, *, ids: Ids, missing_id: int | None = None) -> Any:
    """A TorchRec KeyedJaggedTensor over all features (needs torchrec); `ids` as for `to_embedding_bag_inputs`.

    It has weights where any row layout has; the ids of layouts without weigh 1.
    """
    try:
        from torchrec import KeyedJaggedTensor
    except ImportError as error:
        raise ImportError(
            "to_kjt() needs torchrec, which is not a dependency of headrace: pip install torchrec"
        ) from error
    return KeyedJaggedTensor(
        keys=list(batch.group_feature_names),
        values=torch.cat([_values(g, ids, missing_id) for g in batch.groups]),
        lengths=torch.cat([g.lengths for g in batch.groups]),
        weights=_weights(batch.groups),
    )


def join_torchrec() -> None:
    """Make :class:`Batch` a ``torchrec.streamable.Pipelineable`` where torchrec was imported (it is not imported here).

    TorchRec's train pipelines assert that a batch is an instance of that class; what it asks for (``to``,
    ``record_stream``) a batch has.
    """
    module = sys.modules.get("torchrec.streamable")
    interface = getattr(module, "Pipelineable", None)
    if interface is not None and not issubclass(Batch, interface):
        interface.register(Batch)


def _weights(groups: tuple[BatchGroup, ...]) -> Tensor | None:
    """float32 [nnz] of all groups; None where none has any."""
    own = [_checked_weights(group, number) for number, group in enumerate(groups)]
    if all(one is None for one in own):
        return None
    pairs = zip(groups, own, strict=True)
    return torch.cat([torch.ones_like(g.query_ids, dtype=torch.float32) if w is None else w for g, w in pairs])


def _checked_weights(group: BatchGroup, number: int) -> Tensor | None:
    """The group's weights; ValueError unless they are float32, one an id."""
    weights, count = group.weights, len(group.query_ids)
    if weights is not None and (weights.dtype != torch.float32 or weights.shape != (count,)):
        found = f"{str(weights.dtype).removeprefix('torch.')} {list(weights.shape)}"
        raise ValueError(f"group {number}: weights are {found}, not float32 [{count}], one an id")
    return weights


def _values(group: BatchGroup, ids: Ids, missing_id: int | None) -> Tensor:
    """int64 [nnz]."""
    if isinstance(ids, str) and ids == "slot":
        if group.num_unique and bool((group.slots < 0).any()):
            raise ValueError("the batch has no plan, so its rows have no slots: ask for ids='raw'")
        return group.slots[group.query_ids]
    if not isinstance(ids, str) or ids != "raw":
        raise ValueError(f"ids={ids!r} is neither 'slot' nor 'raw'")
    if missing_id is not None:
        missing_id = check_integer("missing_id", missing_id, -(1 << 63), (1 << 64) - 1)
        missing_id -= (missing_id >> 63) << 64 if missing_id > 0 else 0
    unique = group.unique_ids.view(torch.int64)
    if bool(group.missing.any()):
        if missing_id is None:
            raise ValueError(
                "the batch has missing values: say by missing_id what they shall be, lest they become id 0"
            )
        unique = torch.where(group.missing, missing_id, unique)
    return unique[group.query_ids]
