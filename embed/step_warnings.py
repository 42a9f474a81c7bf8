"""What a stage warns of, once each: training loops that train no rows, without an error that would tell."""

from __future__ import annotations

import warnings

import torch

from headrace.ingest.batch import Batch

MANY_BATCHES = 256
"""So many batches without a step are taken for a step that was forgotten."""

MANY_STEPS = 16
"""So many steps in a row without a gradient are taken for a mistake: one may be the rest of an accumulation, after a
validation outside no_grad."""


class StepWarnings:
    """UserWarnings at the line of the caller's loop: `of_waiting` is called by the stage's forward, `of_nothing` by its
    optimizer's step."""

    def __init__(self) -> None:
        self._warns_of_waiting = self._warns_of_nothing = True
        self._why_evaluated: str | None = None  # the last batch, outside no_grad
        self._has_trained = False
        self._num_of_nothing = 0  # in a row

    def trained(self) -> None:
        """A batch went forward in training."""
        self._why_evaluated = None
        self._has_trained = True
        self._num_of_nothing = 0

    def stepped(self) -> None:
        """A step has changed rows, whoever gave their gradients."""
        self._has_trained = True
        self._num_of_nothing = 0

    def evaluated(self, batch: Batch) -> None:
        """A batch went forward in evaluation."""
        self._why_evaluated = _why_evaluated(batch) if torch.is_grad_enabled() else None

    def of_waiting(self, num_batches: int) -> None:
        """The gradients of so many batches wait."""
        if self._warns_of_waiting and num_batches >= MANY_BATCHES:
            self._warns_of_waiting = False
            warnings.warn(
                f"the gradients of {num_batches} batches wait for a step, and no row was trained since: call "
                "stage.step(batch) (or stage.optimizer().step()) after backward",
                UserWarning,
                stacklevel=8,  # through torch.nn.Module and what keeps its compiler out
            )

    def of_nothing(self) -> None:
        """A step found no gradient."""
        if self._why_evaluated is None:
            return
        self._num_of_nothing += 1
        if self._warns_of_nothing and (self._num_of_nothing >= MANY_STEPS or not self._has_trained):
            self._warns_of_nothing = False
            warnings.warn(
                f"stage.optimizer().step() has no gradient of any row to apply: {self._why_evaluated}",
                UserWarning,
                stacklevel=6,  # through the optimizer, and what torch puts around its step
            )


def _why_evaluated(batch: Batch) -> str:
    if batch.plan is None:
        return "the last batch has no plan, and was scored; batches to train on come from DataLoader(..., train=True)"
    return (
        "the last batch was evaluated, since the stage is in evaluation mode; call model.train() before training, or "
        "leave this step out where the rows are to stay as they are"
    )
