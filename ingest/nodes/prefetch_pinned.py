"""PrefetchPinned: prefetch into page-locked memory, so that copies to the device can overlap with compute."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from headrace.ingest.batch import Batch
from headrace.ingest.engine.buffered import BufferedMap
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.prefetch import Prefetch


class PrefetchPinned(BufferedMap[Batch]):
    """:class:`Prefetch` whose thread pins the batches; without an accelerator they pass as they are, with one warning.

    Its state is that of `Prefetch`: where memory lies is nothing that a resumed run must repeat.
    """

    def __init__(self, source: Iterable[Batch], *, prefetch_factor: int = 2, timeout_s: float | None = None) -> None:
        capacity = check_int("Prefetch", "prefetch_factor", prefetch_factor, minimum=1)
        can_pin = torch.accelerator.is_available()
        if not can_pin:
            warnings.warn("pin_memory=True has no effect: no accelerator was found", RuntimeWarning, stacklevel=3)
        super().__init__(
            source, _pinned if can_pin else _as_it_is, num_workers=1, capacity=capacity, timeout_s=timeout_s
        )

    @property
    def name(self) -> str:
        return str(Prefetch.__name__)


def _pinned(batch: Batch) -> Batch:
    return batch.pin_memory()


def _as_it_is(batch: Batch) -> Batch:
    return batch
