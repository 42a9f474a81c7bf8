"""A progress bar with the time left, where a person watches: on rank 0, when standard error is a terminal."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from typing import Any

from headrace.formats.file_reader import FileReader
from headrace.ingest.data_loader import DataLoader

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_PACKED = (".gz", ".zst")


def is_watched() -> bool:
    """Whether this process is the one that shows progress, and somebody can see it."""
    rank = next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0")
    return rank == "0" and sys.stderr is not None and sys.stderr.isatty()


class ReplayProgress(AbstractContextManager["ReplayProgress"]):
    """Rows handed out of those known, or bytes read of those there are; without a total where packed files hide it."""

    def __init__(self, reader: FileReader[Any], loader: DataLoader, epochs: int) -> None:
        self._reader, self._loader = reader, loader
        self._in_rows, total = _total(reader)
        self._epoch_total = total or 0
        self._bar: Any = None
        if is_watched():
            from tqdm import tqdm

            unit = "row" if self._in_rows else "B"
            self._bar = tqdm(
                total=None if total is None else total * epochs, unit=unit, unit_scale=True, desc="replay", leave=False
            )

    def __call__(self, epochs_done: int) -> None:
        """Show where the loader is; `epochs_done` epochs lie behind it."""
        if self._bar is None:
            return
        at = self._loader.rows_handed_out if self._in_rows else epochs_done * self._epoch_total + self._loader.bytes_in
        self._bar.update(max(0, at - self._bar.n))

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _total(reader: FileReader[Any]) -> tuple[bool, int | None]:
    """(in rows, not bytes; the number of an epoch, where it is known)"""
    if (rows := reader.num_rows) is not None:
        return True, rows
    if reader.growing is not None or any(file.endswith(_PACKED) for file in reader.files):
        return True, None
    return False, sum(reader.sizes)
