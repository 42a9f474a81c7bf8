"""Arrays of all ranks on all ranks: what metrics are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer.exchange.agreement import agree
from headrace.indexer.exchange.channel import MESSAGE_LIMIT, Array, Channel, check_size

_KINDS = "biuf"  # truths and numbers


def gather_arrays(channel: Channel, array: npt.ArrayLike, what: str) -> list[Array]:
    """See :meth:`headrace.indexer.exchange.communicator.Communicator.all_gather`."""
    mine = _checked(array, what)
    row = mine.shape[1:]  # of a scalar, too: it is one row, and none of an array
    shape = f"({', '.join(['any', *map(str, row)])})" if mine.ndim else "a scalar's"
    with channel.sole_use(what):
        return _gathered(channel, mine, row, shape, what)


def _gathered(channel: Channel, mine: Array, row: tuple[int, ...], shape: str, what: str) -> list[Array]:
    agree(channel, {"dtype": mine.dtype, "shape": shape}, what, wrong=f"all_gather of different arrays ({what})")
    lengths = channel.all_gather(np.array([len(mine) if mine.ndim else 1], np.int64), what)[:, 0].tolist()
    row_bytes = int(np.prod(row, dtype=object)) * mine.dtype.itemsize
    for rank, length in enumerate(lengths):
        check_size(length * row_bytes, MESSAGE_LIMIT, rank)
    found = [np.empty((length, *row) if mine.ndim else (), mine.dtype) for length in lengths]
    channel.all_to_all([mine] * channel.size, found, what)
    return found


def _checked(array: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """C-contiguous, of this machine's byte order."""
    found = np.asarray(array)
    if found.dtype.kind not in _KINDS or found.dtype.itemsize > 8:
        raise TypeError(
            f"all_gather takes numbers or truths of 8 bytes at most, got {what} as {type(array).__name__} of dtype "
            f"{found.dtype}"
        )
    return found.astype(found.dtype.newbyteorder("="), order="C", copy=False)
