"""Saving a stage by itself: rows as tensors, the rest as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace.embed.arrays import Array

if TYPE_CHECKING:
    from headrace.embed.stage import EmbeddingStage


def stage_options(stage: EmbeddingStage) -> dict[str, Any]:
    """What must be the same for rows to be restored, as plain data."""
    return {
        "schema": stage.schema.digest,
        "seed": stage.seed,
        "initializer": stage.initializer.to_dict(),
        "table_initializers": {name: one.to_dict() for name, one in sorted(stage.table_initializers.items())},
    }


def stage_state(stage: EmbeddingStage) -> dict[str, Any]:
    """Tensors ``locations_g`` uint64 [n] and ``rows_g`` float32 [n, dim + state] of each group, copies; plain data
    ``optimizer`` and ``options``."""
    rows: dict[str, Any] = {name: torch.from_numpy(array) for name, array in stage.state_arrays().items()}
    return {**rows, "optimizer": stage.optimizer().state_dict(), "options": stage_options(stage)}


def load_stage_state(stage: EmbeddingStage, saved: Mapping[str, Any]) -> None:
    """Take over what :func:`stage_state` gave; ValueError, TypeError or MemoryError before anything changes."""
    if not isinstance(saved, Mapping):
        raise TypeError(f"a state is a mapping, got {type(saved).__name__}")
    state = dict(saved)
    optimizer, options = state.pop("optimizer", None), state.pop("options", None)
    if options != stage_options(stage):
        raise ValueError(f"a state of a stage with {options}, this one has {stage_options(stage)}")
    arrays = {name: _array(name, value) for name, value in state.items()}
    stage.optimizer().check_state_dict(optimizer)
    with stage.state_to_load(arrays, also=lambda: stage.optimizer().load_state_dict(optimizer)) as load:
        load()


def _array(name: str, value: Any) -> Array:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name!r} is a {type(value).__name__}, not a tensor")
    try:
        array: Array = value.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:  # sparse, conjugate, without memory, of a type that NumPy lacks
        raise ValueError(f"{name!r} is a tensor that is no plain array: {error}") from error
    return array
