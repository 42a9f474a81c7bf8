"""Saving a stage by itself: rows as tensors, the rest as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace.embed.arrays import Array

if TYPE_CHECKING:
    from headrace.embed.stage import EmbeddingStage


def stage_options(stage: EmbeddingStage) -> dict[str, Any]:
    """What must be the same for rows to be restored, as plain data: labels need not, so that a stage for scoring takes
    the rows of training."""
    return {
        "schema": stage.schema.digest,
        "schema_of_rows": replace(stage.schema, labels=()).digest,
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
    _check_options(options, stage_options(stage))
    arrays = {name: _array(name, value) for name, value in state.items()}
    stage.optimizer().check_state_dict(optimizer)
    with stage.state_to_load(arrays, also=lambda: stage.optimizer().load_state_dict(optimizer)) as load:
        load()


def _check_options(saved: object, present: Mapping[str, Any]) -> None:
    """ValueError that says what the stage of a state had otherwise."""
    if not isinstance(saved, Mapping):
        raise ValueError("not the state of an EmbeddingStage, as stage.state_dict() gives it: it has no 'options'")
    ignored = "schema" if "schema_of_rows" in saved else "schema_of_rows"  # which older states lack
    differing = [name for name, value in present.items() if name != ignored and saved.get(name) != value]
    if differing:
        words = [
            "another schema (columns, tables, dims, optimizers and poolings must be the same)"
            if name.startswith("schema")  # a digest, which tells nobody anything
            else f"{name}={saved.get(name)!r}, this one has {name}={present[name]!r}"
            for name in differing
        ]
        raise ValueError(f"the state is of a stage with {'; '.join(words)}")


def _array(name: str, value: Any) -> Array:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name!r} is a {type(value).__name__}, not a tensor")
    try:
        array: Array = value.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:  # sparse, conjugate, without memory, of a type that NumPy lacks
        raise ValueError(f"{name!r} is a tensor that is no plain array: {error}") from error
    return array
