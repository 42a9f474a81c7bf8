"""Synthetic multi-hot ids from one-hot ones, by the rule that MLPerf's DLRM-DCNv2 published.

A feature with h ids a row and a table of n rows has a lookup table of n x h: its row i is i itself, followed by h - 1
ids drawn uniformly from [0, n) once, for all features in their order, from NumPy's legacy generator with seed 0. A
one-hot id is taken modulo n and looked up. So the ids are a pure function of the one-hot id, and bit for bit those of
the published files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.formats.checks import check_integer
from headrace.formats.criteo_arrays import DCNV2_MULTI_HOT_SIZES, DCNV2_TABLE_SIZES

I32 = npt.NDArray[np.int32]

_ROWS_AT_ONCE = 1 << 16
_MAX_TABLE_ROWS = 2**31 - 1


class MultiHotTables:
    """Lookup tables of all features; 4 bytes for each drawn id (24 GB for the published sizes, none for h = 1).

    `hot` and `table_sizes` are those of MLPerf unless given.
    """

    def __init__(
        self,
        hot: Sequence[int] = DCNV2_MULTI_HOT_SIZES,
        table_sizes: Sequence[int] = DCNV2_TABLE_SIZES,
        *,
        seed: int = 0,
    ) -> None:
        if len(hot) != len(table_sizes):
            raise ValueError(f"{len(hot)} multi-hot sizes for {len(table_sizes)} tables")
        self.hot = tuple(check_integer(f"multi-hot size {i}", h, 1, 1 << 16) for i, h in enumerate(hot))
        self.table_sizes = tuple(
            check_integer(f"table size {i}", n, 1, _MAX_TABLE_ROWS) for i, n in enumerate(table_sizes)
        )
        generator = np.random.RandomState(check_integer("seed", seed, 0, 2**32 - 1))
        self._drawn = [_draw(generator, n, h - 1) for n, h in zip(self.table_sizes, self.hot, strict=True)]

    def expand(self, feature: int, ids: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.uint64]:  # type: ignore[type-arg]
        """uint64 [rows, h] of the one-hot `ids` [rows] of a feature."""
        row = ids % np.uint64(self.table_sizes[feature])
        return np.hstack([row[:, None].astype(np.uint64), self._drawn[feature][row.astype(np.int64)].astype(np.uint64)])


def _draw(generator: np.random.RandomState, rows: int, width: int) -> I32:
    """int32 [rows, width]: the same numbers as in one call for all rows, in a bounded number of int64 at a time."""
    drawn = np.empty((rows, width), np.int32)
    if width:
        for first in range(0, rows, _ROWS_AT_ONCE):
            part = drawn[first : first + _ROWS_AT_ONCE]
            part[:] = generator.randint(0, rows, size=part.shape)
    return drawn
