"""Whether a saved state fits what it shall be restored into; nothing is changed here.

Each function raises CheckpointError that begins with `where` and names what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from headrace.embed.run_folder import CheckpointError
from headrace.formats.schema import Schema
from headrace.formats.schema_difference import differences, same_rows

_SCHEDULER_OPTIONS = frozenset({"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"})
"""What learning rate schedulers add to the groups of any optimizer."""


def check_schema(saved: Schema, present: Schema, where: str) -> None:
    """The stage must have the saved schema; labels do not matter to its rows."""
    if not same_rows(saved, present):
        what = differences(saved, present, ("the saved run", "the stage"), labels=False)
        raise CheckpointError(f"{where} was saved with another schema: {what}")


def check_dense_state(model: Any, optimizer: Any, where: str) -> None:
    """What was saved of a model and its optimizer (or None) must have the form of their states."""
    if not isinstance(model, Mapping):
        raise CheckpointError(f"{where}: its state of a model is a {type(model).__name__}, not a mapping")
    if optimizer is None:
        return
    groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else None
    if not isinstance(groups, list) or not isinstance(optimizer.get("state"), Mapping):
        raise CheckpointError(f"{where}: its state of an optimizer has no mapping 'state' and list 'param_groups'")
    for group in groups:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), list):
            raise CheckpointError(f"{where}: a parameter group of its optimizer has no list 'params'")


def check_model(saved: Mapping[str, Any], model: torch.nn.Module, where: str) -> None:
    """The model must have the saved names, and tensors of the saved shapes."""
    present = model.state_dict()
    lost, new = [name for name in saved if name not in present], [name for name in present if name not in saved]
    if lost or new:
        raise CheckpointError(f"{where} was saved with another model: only saved {lost}, only in the model {new}")
    for name, value in saved.items():
        now = present[name]
        if not isinstance(value, torch.Tensor) or not isinstance(now, torch.Tensor) or is_lazy(now):
            continue
        if value.shape != now.shape:
            was, has = list(value.shape), list(now.shape)
            raise CheckpointError(f"{where} was saved with {name} of shape {was}, the model has {has}")


def check_optimizer(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, where: str) -> None:
    """The optimizer must have the saved parameter groups, and be of the saved kind as far as its options tell.

    A later release of torch may add options, or take some away; of another kind is what lacks some and has others.
    """
    groups, present = saved["param_groups"], optimizer.state_dict()["param_groups"]
    sizes, now = [len(g["params"]) for g in groups], [len(g["params"]) for g in present]
    if sizes != now:
        raise CheckpointError(f"{where} was saved with an optimizer of {sizes} parameters a group, this one has {now}")
    lost, new = _options(groups) - _options(present), _options(present) - _options(groups)
    if lost and new:
        raise CheckpointError(
            f"{where} was saved with another optimizer than {type(optimizer).__name__}: "
            f"only saved {sorted(lost)}, only in this one {sorted(new)}"
        )


def _options(groups: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for group in groups for name in group} - _SCHEDULER_OPTIONS
