"""A DataLoader as a node: for torchdata's Loader and nodes, and for chains of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.ingest.batch import Batch
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import State, count_in, state_in

if TYPE_CHECKING:
    from headrace.ingest.data_loader import DataLoader


class LoaderNode(Node[Batch]):
    """Batches of a loader; see :meth:`DataLoader.as_node`.

    A ``reset()`` begins the loader's next epoch, ``reset(state)`` continues that of the state. A state at the end of an
    epoch is at its end: nothing comes, until the next ``reset()``.
    """

    def __init__(self, loader: DataLoader) -> None:
        super().__init__()
        self.loader = loader
        self._epoch: Iterator[Batch] = iter(())

    def _next(self) -> Batch:
        return next(self._epoch)

    def _reset(self, state: State | None) -> None:
        if state is None:
            self._epoch = self.loader._iterate(self.loader.epoch_to_come, None, 0)
            return
        epoch, batches = (count_in(self.name, state, key) for key in ("epoch", "batches"))
        self._epoch = self.loader._iterate(epoch, state_in(self.name, state, "pipeline"), batches)

    def _state(self) -> State:
        running = self.loader.running_state()
        return {key: running[key] for key in ("epoch", "batches", "pipeline")}

    def _close(self) -> None:
        self.loader._end("its node was closed")

    def _upstream(self) -> tuple[Node[Any], ...]:
        """The loader's nodes, so that waking, closing and statistics reach them."""
        return (self.loader._root,)

    def _defer_delivery(self) -> None:
        self._deferred = True  # not further: a batch counts as handed out when it leaves the loader

    def delivered(self, item: object) -> None:
        """Ends here: the loader's own last node has said so."""
