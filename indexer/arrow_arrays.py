"""Arrow arrays as NumPy arrays, without passing nullable integers through floats (ids above 2^53 would merge)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow_buffers import null_mask, primitive_values
from headrace.indexer.indexed import Bool

Values = npt.NDArray[Any]


def holds_integers(kind: pa.DataType) -> bool:
    """Whether :func:`integers` takes arrays of this type: integers, plain or as a dictionary."""
    return bool(pa.types.is_integer(kind.value_type if pa.types.is_dictionary(kind) else kind))


def integers(array: pa.Array | pa.ChunkedArray) -> tuple[Values, Bool | None]:
    """(integers [n], bool [n] True where null or None) of an array of a type that :func:`holds_integers` allows.

    One chunk of plain integers is viewed, never copied; of several, and of dictionaries, the values are gathered.
    A null in a dictionary is a null wherever an index names it. ValueError for an index outside its dictionary.
    """
    if not isinstance(array, pa.ChunkedArray):
        return _integers(array)
    if array.num_chunks == 0:
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        return np.empty(0, kind.to_pandas_dtype()), None
    return _joined([_integers(chunk) for chunk in array.chunks])


def _joined(chunks: Sequence[tuple[Values, Bool | None]]) -> tuple[Values, Bool | None]:
    if len(chunks) == 1:
        return chunks[0]
    values = np.concatenate([values for values, _ in chunks])
    if all(nulls is None for _, nulls in chunks):
        return values, None
    return values, np.concatenate([np.zeros(len(v), np.bool_) if n is None else n for v, n in chunks])


def _integers(array: pa.Array) -> tuple[Values, Bool | None]:
    if not pa.types.is_dictionary(array.type):
        return primitive_values(array), null_mask(array)
    values, value_nulls = primitive_values(array.dictionary), null_mask(array.dictionary)
    indices, nulls = primitive_values(array.indices), null_mask(array.indices)
    outside = (indices < 0) | (indices >= len(values))
    if nulls is not None:
        outside &= ~nulls
    if outside.any():
        at = int(outside.argmax())
        raise ValueError(f"index {indices[at]} at position {at} is outside its dictionary of {len(values)} values")
    if nulls is not None:
        indices = np.where(nulls, 0, indices)
    if len(values) == 0:  # then all indices are null
        return np.zeros(len(indices), values.dtype), nulls
    if value_nulls is not None:
        named = value_nulls[indices]
        nulls = named if nulls is None else nulls | named
    return values[indices], nulls
