"""Native conversion of record batches to the arrays of a batch; the checked front is `headrace.ingest.row_arrays`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.ingest.array_pool import ArrayPool

class Gatherer:
    def __init__(self, columns: Sequence[tuple[int, bool, float]]) -> None:
        """For each column its role (0 label, 1 dense int64, 2 dense float32, 3 ids of 32 bits, 4 ids of 64 bits),
        whether it goes through ``log1p(max(x, 0))``, and what stands for a null."""

    def gather(
        self, arrays: list[Any], rows: int, pool: ArrayPool
    ) -> tuple[
        npt.NDArray[np.float32],
        npt.NDArray[np.float32],
        npt.NDArray[np.uint32],
        npt.NDArray[np.uint64],
        npt.NDArray[np.bool_],
        npt.NDArray[np.int64],
        bool,
    ]:
        """(labels [B, n], dense [B, n], ids of 32 bits [n, B], of 64 bits [n, B], missing [features, B], nulls
        [features], whether a label is missing or a float is not finite); the GIL is released meanwhile.

        `arrays`: "arrow_array" capsules of record batches of just these columns, `rows` rows together. Features are in
        the order of the columns. Ids and flags are memory of `pool`. The value under a null id is arbitrary.
        """
