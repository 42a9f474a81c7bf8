"""Arrow arrays as NumPy arrays and back, by their buffers: nullable integers never become floats on the way (L87)."""

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


def offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """int64 [n + 1]: where the elements of each list, or the bytes of each string, of the array's own slice begin."""
    if len(array) == 0:
        return np.zeros(1, np.int64)
    kind = array.type
    large = pa.types.is_large_list(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    raw = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32, count=array.offset + len(array) + 1)
    return raw[array.offset :].astype(np.int64)


def string_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """uint8: the bytes that :func:`offsets` of a string or binary array refers to."""
    data = array.buffers()[2] if len(array) else None
    return np.empty(0, np.uint8) if data is None or data.size == 0 else np.frombuffer(data, np.uint8)


def to_arrow(values: npt.NDArray[Any], nulls: Bool | None, kind: pa.DataType) -> pa.Array:
    """An array of `kind`, of the width of `values`, over their memory (kept alive); null where `nulls` is True."""
    values = np.ascontiguousarray(values)
    validity, count = None, 0
    if nulls is not None and (count := int(np.count_nonzero(nulls))):
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(values)], count)
