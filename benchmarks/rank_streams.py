"""The rows that all contenders train on: a generated stream, a batch a rank and step, in a folder of arrays.

=========== ============================== ====================================================================
`ids`       uint32 [steps, W, 26, B]       raw ids
`valid`     bool [steps, W, 26, B]         False: missing
`rows`      int32 [steps, W, 26, B]        the same as numbers 0 .. n - 1 of each column, a missing value its own:
                                           what a contender gets that has no index
`dense`     int64 [steps, W, 13, B]        raw dense values (those missing are 0)
`labels`    float32 [steps, W, B]          random
=========== ============================== ====================================================================
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench import BLOCK_ROWS, preset_stream

Array = npt.NDArray[Any]
_NAMES = ("ids", "valid", "rows", "dense", "labels")


@dataclass(frozen=True)
class RankStream:
    """The arrays, read-only, and how many different values each column has."""

    ids: Array
    valid: Array
    rows: Array
    dense: Array
    labels: Array
    cardinalities: list[int]

    @property
    def steps(self) -> int:
        return len(self.labels)

    def unique_rows(self, node_size: int) -> float:
        """Unique rows that the ranks of a node use together in a step, on average."""
        counts = []
        offsets = np.cumsum([0, *self.cardinalities[:-1]])[:, None]
        for step in self.rows:
            for first in range(0, len(step), node_size):
                keys = step[first : first + node_size].astype(np.int64) + offsets
                counts.append(len(np.unique(keys)))
        return float(np.mean(counts))


def write_stream(folder: Path, preset: str, *, ranks: int, batch_size: int, steps: int, seed: int) -> None:
    """Draw ``steps * ranks * batch_size`` rows; row r is the same for every number of ranks."""
    total = steps * ranks * batch_size
    stream = preset_stream(preset, seed)
    blocks = [stream.block(i) for i in range(-(-total // BLOCK_ROWS))]
    ids, valid, dense, dense_valid = (
        np.concatenate([getattr(b, name) for b in blocks], axis=1)[:, :total]
        for name in ("ids", "ids_valid", "dense", "dense_valid")
    )
    rows = np.empty(ids.shape, np.int32)
    cardinalities = []
    for c, column in enumerate(ids):
        keys = np.where(valid[c], column.astype(np.int64), -1)
        different, rows[c] = np.unique(keys, return_inverse=True)
        cardinalities.append(len(different))
    labels = np.random.default_rng(seed).integers(0, 2, total).astype(np.float32)
    arrays = {"ids": ids, "valid": valid, "rows": rows, "dense": np.where(dense_valid, dense, 0)}
    for name, array in arrays.items():
        parts = array.reshape(len(array), steps, ranks, batch_size).transpose(1, 2, 0, 3)
        np.save(folder / f"{name}.npy", np.ascontiguousarray(parts))
    np.save(folder / "labels.npy", labels.reshape(steps, ranks, batch_size))
    (folder / "cardinalities.json").write_text(json.dumps(cardinalities))


def read_stream(folder: Path) -> RankStream:
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in _NAMES}
    return RankStream(**arrays, cardinalities=json.loads((folder / "cardinalities.json").read_text()))
