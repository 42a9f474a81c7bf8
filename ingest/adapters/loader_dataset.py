"""A DataLoader as a torch IterableDataset: for torch's DataLoader, StatefulDataLoader, and what is built on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data import IterableDataset, get_worker_info

from headrace.ingest.batch import Batch

if TYPE_CHECKING:
    from headrace.ingest.data_loader import DataLoader


class LoaderDataset(IterableDataset[Batch]):
    """Batches of a loader; see :meth:`DataLoader.as_iterable_dataset`.

    ``state_dict`` and ``load_state_dict`` are the loader's, so that a StatefulDataLoader saves and resumes it.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is not None:
            raise RuntimeError(
                f"worker process {worker.id} of {worker.num_workers} cannot iterate over a headrace loader: all "
                "batches go through one index. Give torch's DataLoader num_workers=0, and headrace's the num_workers "
                "(threads) that you want"
            )
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a headrace loader cannot be sent to another process (its index and threads are this one's): give torch's "
            "DataLoader num_workers=0"
        )
