"""Lists and strings of Arrow as NumPy arrays, and NumPy arrays as Arrow ones, by their buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow_buffers import Bool


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
