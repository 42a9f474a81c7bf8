"""The buffers of Arrow arrays as NumPy arrays: nullable integers never become floats on the way, which would merge ids
above 2^53 (L87). A leaf that several rooms share: it imports none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bool = npt.NDArray[np.bool_]


def null_mask(array: pa.Array) -> Bool | None:
    """bool [n], True where the array is null; None when nothing is."""
    if array.null_count == 0:
        return None
    if pa.types.is_null(array.type):  # has no bitmap
        return np.ones(len(array), np.bool_)
    first, bit = divmod(array.offset, 8)
    bitmap = np.frombuffer(array.buffers()[0], np.uint8)[first:]
    mask: Bool = np.unpackbits(bitmap, count=bit + len(array), bitorder="little")[bit:] == 0
    return mask


def primitive_values(array: pa.Array) -> npt.NDArray[Any]:
    """A read-only view of a fixed-width array's values; what stands under a null is arbitrary.

    TypeError for what is not an array of integers or floats of whole bytes.
    """
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise TypeError(f"a column of {array.type}, where integers or floats are expected")
    dtype = np.dtype(array.type.to_pandas_dtype())
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, count=array.offset + len(array))[array.offset :]
