"""PrefetchBatches: the last node of the usual chain, which makes planned steps into batches, ahead of the trainer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from headrace.ingest.batch import Batch
from headrace.ingest.engine.buffered import BufferedMap
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.nodes.plan_window import PlannedRows


class PrefetchBatches(BufferedMap[Batch]):
    """:class:`Prefetch` whose threads give the batches of a :class:`PlanSteps` their final form, and pin them if asked.

    With two threads one makes a batch while the other plans the next step; at the end of a stream, where only plans are
    left to make, that is half of the work. Without an accelerator nothing is pinned, with one warning.

    Its state is that of `Prefetch`: who makes batches and where memory lies is nothing that a resumed run must repeat.
    """

    def __init__(
        self,
        source: Iterable[PlannedRows],
        *,
        num_workers: int = 2,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        capacity = check_int("Prefetch", "prefetch_factor", prefetch_factor, minimum=1)
        workers = check_int("Prefetch", "num_workers", num_workers, minimum=1)
        can_pin = pin_memory and torch.accelerator.is_available()
        if pin_memory and not can_pin:
            warnings.warn("pin_memory=True has no effect: no accelerator was found", RuntimeWarning, stacklevel=3)
        finish = _finished_and_pinned if can_pin else _finished
        super().__init__(source, finish, num_workers=workers, capacity=capacity, timeout_s=timeout_s)

    @property
    def name(self) -> str:
        return str(Prefetch.__name__)


def _finished(planned: PlannedRows) -> Batch:
    return planned.to_batch()


def _finished_and_pinned(planned: PlannedRows) -> Batch:
    return planned.to_batch().pin_memory()
