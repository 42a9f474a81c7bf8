"""Names of array types, for annotations, and tensors as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]


def array_of(values: Any, what: str) -> Array:
    """What came from outside (nested lists and the like) as an array; ValueError that begins with `what` for what is
    none, such as lists of different lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{what} that are no array: {error}") from error


def host_array(tensor: Tensor) -> Array:
    """The tensor as a contiguous array in host memory: a view where it is that already."""
    array: Array = tensor.detach().cpu().contiguous().numpy()
    return array
