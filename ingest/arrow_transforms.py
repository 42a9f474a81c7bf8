"""Users' functions of Arrow record batches as transforms of rows, for :class:`Map` and ``DataLoader(transform=)``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.formats.rows import RowBlock

BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]
Predicate = Callable[[pa.RecordBatch], pa.BooleanArray | npt.NDArray[np.bool_]]
Transform = Callable[[RowBlock], RowBlock]


class OverArrow:
    """``fn(batch)`` gives a record batch of the same rows in the same order, with any columns."""

    def __init__(self, fn: BatchFunction) -> None:
        self.fn = _callable("over_arrow", fn)

    def __call__(self, block: RowBlock) -> RowBlock:
        data = self.fn(block.data)
        if not isinstance(data, pa.RecordBatch):
            raise TypeError(f"over_arrow: the function gave a {type(data).__name__}, where a RecordBatch is expected")
        if data.num_rows != block.num_rows:
            raise ValueError(
                f"over_arrow: {block.num_rows} rows became {data.num_rows}; keep_rows() leaves rows out, and tells "
                "which they were"
            )
        return RowBlock(data, block.source)


class KeepRows:
    """The rows for which ``predicate(batch)`` is true (a null is not); the others are counted as left out."""

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = _callable("keep_rows", predicate)

    def __call__(self, block: RowBlock) -> RowBlock:
        kept = self.predicate(block.data)
        if isinstance(kept, pa.ChunkedArray):
            kept = kept.combine_chunks()
        elif isinstance(kept, np.ndarray) and kept.dtype == np.bool_ and kept.ndim == 1:
            kept = pa.array(kept)
        if not isinstance(kept, pa.Array) or not pa.types.is_boolean(kept.type) or len(kept) != block.num_rows:
            raise TypeError(
                f"keep_rows: the function gives a boolean Arrow or NumPy array, one value for each of the "
                f"{block.num_rows} rows, got a {_told(kept)}"
            )
        mask = kept.fill_null(False).to_numpy(zero_copy_only=False)
        return block if mask.all() else block.take(np.flatnonzero(mask))


def _told(kept: object) -> str:
    if isinstance(kept, pa.Array):
        return f"{kept.type} array of {len(kept)}"
    if isinstance(kept, np.ndarray):
        return f"{kept.dtype} array of shape {kept.shape}"
    return f"{type(kept).__name__}: {kept!r:.200}"


class Chain:
    """Transforms one after the other."""

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = tuple(_callable("chain", transform) for transform in transforms)

    def __call__(self, block: RowBlock) -> RowBlock:
        for transform in self.transforms:
            block = transform(block)
        return block


def over_arrow(fn: BatchFunction) -> Transform:
    """A transform by a function RecordBatch -> RecordBatch of the same rows; see :class:`OverArrow`."""
    return OverArrow(fn)


def keep_rows(predicate: Predicate) -> Transform:
    """A transform that leaves out rows by a function RecordBatch -> boolean array; see :class:`KeepRows`."""
    return KeepRows(predicate)


def chain(*transforms: Transform) -> Transform:
    """A transform of several, applied in this order."""
    return Chain(*transforms)


def _callable(name: str, fn: object) -> Callable:  # type: ignore[type-arg]
    if not callable(fn):
        raise TypeError(f"{name}: a function is expected, got {fn!r}")
    return fn
