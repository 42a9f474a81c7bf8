"""What torch asks of every module, answered by one whose rows are no torch parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex, TypeVar

import torch

_Module = TypeVar("_Module", bound="RowsModule")


class RowsModule(torch.nn.Module):
    """A module whose rows torch does not know of: nested in a model it adds nothing to the model's state, is neither
    copied nor pickled, and cannot be frozen by ``requires_grad_``. What would lose or ignore the rows says so."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._warns_of_rows = True

    def __setattr__(self, name: str, value: Any) -> None:
        """As torch, which takes 5 microseconds to find that what was plain stays plain; a step sets some five names."""
        if name in self.__dict__ and not isinstance(value, (torch.Tensor, torch.nn.Module)):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def requires_grad_(self: _Module, requires_grad: bool = True) -> _Module:
        """There is nothing to switch off: the rows are no torch parameters. RuntimeError that says how to freeze."""
        if not requires_grad:
            raise RuntimeError(
                "the rows of an EmbeddingStage are no torch parameters, and would be trained on: name their tables in "
                "EmbeddingStage(frozen=[...]), set the lr of their group in stage.optimizer().param_groups to 0, or "
                "call stage.eval() for as long as nothing is to be trained"
            )
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """For ``copy.deepcopy``, ``pickle`` and ``torch.save``: TypeError that says what to do."""
        raise TypeError(
            "an EmbeddingStage, or a model that contains one, is neither copied nor pickled: its rows may be many "
            "times the model. Save it with headrace.save_run, or by stage.state_dict() and model.state_dict(); to copy "
            "or average a model (AveragedModel), take its dense part as a module of its own"
        )

    @contextmanager
    def rows_saved_elsewhere(self) -> Iterator[None]:
        """Within it ``state_dict()`` does not warn that the rows are not in it."""
        before, self._warns_of_rows = self._warns_of_rows, False
        try:
            yield
        finally:
            self._warns_of_rows = before

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Nothing to save, so that a model with the stage has the keys of its dense part."""
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[no-untyped-call]
        if self._warns_of_rows:
            self._warns_of_rows = False
            warnings.warn(
                "the embedding rows are not in state_dict(); save the run with headrace.save_run (or the rows with "
                "stage.state_arrays() and the index with its snapshot)",
                UserWarning,
                stacklevel=2,
            )
