"""The optimizer of the embedding rows, as torch's training loops know optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from headrace.embed.arguments import check_integer
from headrace.embed.optimizers import UpdateRule, check_betas, check_eps, check_lr, check_weight_decay
from headrace.formats.schema import OptimizerName

_MOST_STEPS = (1 << 63) - 1

_CHECKS: dict[str, Callable[[Any], Any]] = {
    "lr": check_lr,
    "eps": check_eps,
    "weight_decay": check_weight_decay,
    "betas": check_betas,
}


class StageOptimizer(torch.optim.Optimizer):
    """Drives the updates of an :class:`~headrace.embed.stage.EmbeddingStage`, which it holds weakly; see
    ``stage.optimizer()``.

    ``param_groups`` has one entry a row layout of the schema, in its order: `lr`, `eps`, `weight_decay` (and `betas`
    where any table has Adam), `optimizer` and `tables`. What is written there holds from the next step on, so that
    learning rate schedulers work. Its `params` are what waits for the step: a stand-in for the rows of the batches
    since the last one, whose ``.grad`` float32 [rows, dim] can be read, scaled and clipped, and whose values cannot.

    States: pending (a training forward was done) --`step`--> applied; pending --`zero_grad`--> dropped. A step without
    gradients does nothing and is not counted. Over ranks a step of a batch that went forward is one on all of them, and
    counted on all, also where this rank has no rows; a rank that has some and no gradient of them is refused.
    """

    def __init__(
        self,
        layouts: Sequence[tuple[OptimizerName, tuple[str, ...]]],
        *,
        apply: Callable[[], None],
        drop: Callable[[], None],
        lr: float,
        eps: float,
        weight_decay: float,
        betas: tuple[float, float],
    ) -> None:
        defaults = {"lr": check_lr(lr), "eps": check_eps(eps), "weight_decay": check_weight_decay(weight_decay)}
        with_betas: dict[str, Any] = {"betas": check_betas(betas)}
        if any(name == "adam" for name, _ in layouts):
            defaults |= with_betas
        groups: list[dict[str, Any]] = [{"params": [], "optimizer": name, "tables": tables} for name, tables in layouts]
        self.num_steps = 0
        self._made = False
        super().__init__(groups or [{"params": []}], defaults)
        del self.param_groups[len(layouts) :]  # a schema without tables
        self._apply, self._drop = weakref.WeakMethod(apply), weakref.WeakMethod(drop)
        self._made = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One optimizer step on every row with a gradient; `closure`, if given, is called first and its result given.

        FloatingPointError (if the stage checks) and ValueError for hyper-parameters out of range, before any change.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._call(self._apply)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients since the last step; a batch that went forward may still get some."""
        self._call(self._drop)

    @staticmethod
    def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
        found = method()
        if found is None:
            raise RuntimeError("the stage of this optimizer is gone: keep a reference to it")
        found()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the groups are the row layouts of the schema."""
        if self._made:
            raise RuntimeError("the groups of this optimizer are the row layouts of the schema; none can be added")
        super().add_param_group(param_group)

    def show(self, pending: Sequence[Sequence[Tensor]]) -> None:
        """What waits for the step, one sequence a group; for the stage."""
        for group, leaves in zip(self.param_groups, pending, strict=True):
            group["params"] = list(leaves)

    def rules(self) -> list[UpdateRule]:
        """The optimizer of each group with its present hyper-parameters, for the step to come."""
        return [
            UpdateRule(
                name=group["optimizer"],
                lr=_number(group["lr"]),
                eps=_number(group["eps"]),
                weight_decay=_number(group["weight_decay"]),
                betas=tuple(map(_number, group.get("betas", (0.9, 0.999)))),  # type: ignore[arg-type]
                step=self.num_steps + 1,
            )
            for group in self.param_groups
        ]

    def shared(self, name: str) -> Any:
        """The hyper-parameter that all groups have; ValueError where they differ."""
        values = [_number(g[name]) if name != "betas" else tuple(g[name]) for g in self.param_groups]
        if any(value != values[0] for value in values):
            raise ValueError(f"the row layouts differ in {name}: {values}; see stage.optimizer().param_groups")
        return values[0] if values else self.defaults[name]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """For ``copy.deepcopy``, ``pickle`` and ``torch.save``: TypeError, since a copy would drive the same stage."""
        raise TypeError(
            "the optimizer of an EmbeddingStage belongs to its stage, and is neither copied nor pickled: save the run "
            "with headrace.save_run, or stage.optimizer().state_dict()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain data: number of steps, and the options of each group (without pending gradients)."""
        groups = [{k: _number(v) for k, v in group.items() if k != "params"} for group in self.param_groups]
        return {"state": {"num_steps": self.num_steps}, "param_groups": [{**group, "params": []} for group in groups]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Take over what :meth:`state_dict` gave; ValueError or TypeError, before any change, for another layout."""
        taken = self.check_state_dict(state_dict)
        for mine, options in zip(self.param_groups, taken, strict=True):
            mine.update(options)
        self.num_steps = int(state_dict["state"]["num_steps"])

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The options of each group as :meth:`load_state_dict` would take them; raises as it does."""
        state, groups = _parts(state_dict)
        check_integer("num_steps", state.get("num_steps"), least=0, most=_MOST_STEPS)
        if len(groups) != len(self.param_groups):
            raise ValueError(f"a state of {len(groups)} row layouts for {len(self.param_groups)}")
        pairs = zip(self.param_groups, groups, strict=True)
        return [_checked_options(mine, saved, self.defaults) for mine, saved in pairs]


def _checked_options(mine: Mapping[str, Any], saved: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    for name in ("optimizer", "tables"):
        if _plain(saved.get(name)) != _plain(mine[name]):
            raise ValueError(f"a state of {name}={saved.get(name)!r}, this stage has {mine[name]!r}")
    lost = [name for name in names if name not in saved]
    if lost:
        raise ValueError(f"a state without {', '.join(lost)}")
    checked = {name: check(saved[name]) for name, check in _CHECKS.items() if name in saved}
    return {k: v for k, v in {**saved, **checked}.items() if k not in ("params", "optimizer", "tables")}


def _parts(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    if not isinstance(state, Mapping) or set(state) != {"state", "param_groups"}:
        raise ValueError("not a state of a stage's optimizer: it has 'state' and 'param_groups'")
    if not isinstance(state["state"], Mapping) or not all(isinstance(g, Mapping) for g in state["param_groups"]):
        raise ValueError("not a state of a stage's optimizer: 'state' and each of 'param_groups' are mappings")
    return state["state"], state["param_groups"]


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
