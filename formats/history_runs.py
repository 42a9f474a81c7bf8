"""Sorted runs of a behaviour log on disk, and their merge: the external merge sort by (key, time).

Rows of equal key and time keep their order in the log: runs are parts of the log one after the other, each sorted
stably, and a merge takes the earlier run first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.formats.atomic_file import named_errors, sync_folder
from headrace.formats.text_values import U64, Bool

I64 = npt.NDArray[np.int64]

MERGE_ROWS = 1 << 21
_LEAST_ROWS = 256


@dataclass(frozen=True)
class LogRows:
    """Rows of a log: `keys` uint64 [n], `times` int64 [n]; for each value column ids (uint64 [n]) and which miss."""

    keys: U64
    times: I64
    values: tuple[U64, ...]
    missing: tuple[Bool, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: I64 | slice) -> LogRows:
        return LogRows(
            self.keys[rows],
            self.times[rows],
            tuple(column[rows] for column in self.values),
            tuple(column[rows] for column in self.missing),
        )

    def sorted(self) -> LogRows:
        """By (key, time), stably."""
        return self.take(np.lexsort((self.times, self.keys)).astype(np.int64))

    @staticmethod
    def concat(parts: Sequence[LogRows]) -> LogRows:
        return LogRows(
            np.concatenate([p.keys for p in parts]),
            np.concatenate([p.times for p in parts]),
            tuple(np.concatenate(columns) for columns in zip(*(p.values for p in parts), strict=True)),
            tuple(np.concatenate(columns) for columns in zip(*(p.missing for p in parts), strict=True)),
        )

    @property
    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """By the names that they have in a run's folder."""
        named: dict[str, npt.NDArray[np.generic]] = {"keys": self.keys, "times": self.times}
        for i, (values, missing) in enumerate(zip(self.values, self.missing, strict=True)):
            named |= {f"values-{i}": values, f"missing-{i}": missing}
        return named


def write_run(folder: Path, rows: LogRows) -> None:
    """Write sorted rows into a new folder, an array a file, all on disk before it returns."""
    folder.mkdir()
    for name, array in rows.arrays.items():
        path = folder / f"{name}.npy"
        with named_errors(path), open(path, "xb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
    sync_folder(folder)
    sync_folder(folder.parent)


def is_whole(folder: Path, columns: int, rows: int) -> bool:
    """Whether a run is there with all of its rows."""
    try:
        run = open_run(folder, columns)
    except (OSError, ValueError):
        return False
    return all(len(array) == rows for array in run.arrays.values())


def open_run(folder: Path, columns: int) -> LogRows:
    """The rows of a run, mapped and not read."""

    def array(name: str) -> npt.NDArray[np.generic]:
        path = folder / f"{name}.npy"
        loaded: npt.NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
        return loaded

    return LogRows(
        array("keys"),  # type: ignore[arg-type]
        array("times"),  # type: ignore[arg-type]
        tuple(array(f"values-{i}") for i in range(columns)),  # type: ignore[misc]
        tuple(array(f"missing-{i}") for i in range(columns)),  # type: ignore[misc]
    )


def rows_at_a_time(runs: int) -> int:
    """Rows of each of so many runs that a merge looks at: `MERGE_ROWS` together, as long as they are not too many."""
    return max(_LEAST_ROWS, MERGE_ROWS // max(1, runs))


def merge_runs(runs: Sequence[LogRows], *, rows: int) -> Iterator[LogRows]:
    """All rows of sorted runs in order; at most `rows` of each are held at a time.

    What may be given out is bounded by the least last row of the parts that are held: no part that is read later has a
    smaller one. Of rows equal to it those of earlier runs come before, those of later ones after.
    """
    at = [0] * len(runs)
    while True:
        heads = {i: runs[i].take(slice(at[i], at[i] + rows)) for i in range(len(runs)) if at[i] < len(runs[i])}
        if not heads:
            return
        borders = [(int(h.keys[-1]), int(h.times[-1]), i) for i, h in heads.items() if at[i] + rows < len(runs[i])]
        border = min(borders, default=None)
        parts = []
        for i, head in heads.items():
            taken = len(head) if border is None or border[2] == i else _rows_before(head, border, i)
            parts.append(head.take(slice(0, taken)))
            at[i] += taken
        yield LogRows.concat(parts).sorted()


def _rows_before(head: LogRows, border: tuple[int, int, int], run: int) -> int:
    key, time, last_run = border
    low, high = (int(np.searchsorted(head.keys, np.uint64(key), side=side)) for side in ("left", "right"))  # type: ignore[call-overload]
    side = "right" if run < last_run else "left"
    return low + int(np.searchsorted(head.times[low:high], np.int64(time), side=side))  # type: ignore[call-overload]
