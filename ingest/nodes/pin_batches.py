"""PinBatches: batches in page-locked memory, so that copies to the device can overlap with compute."""

from __future__ import annotations

import warnings

import torch
from torchdata.nodes import BaseNode

from headrace.ingest.batch import Batch
from headrace.ingest.engine.node import Node


class PinBatches(Node[Batch]):
    """Pin each batch; without an accelerator batches pass as they are, with one warning."""

    def __init__(self, source: BaseNode[Batch]) -> None:
        super().__init__(source)
        self._can_pin = torch.accelerator.is_available()
        if not self._can_pin:
            warnings.warn("pin_memory=True has no effect: no accelerator was found", RuntimeWarning, stacklevel=3)

    def _next(self) -> Batch:
        batch: Batch = self._pull()
        return batch.pin_memory() if self._can_pin else batch
