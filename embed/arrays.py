"""Names of array types, for annotations, and tensors as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
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
    """What came from outside (a tensor, nested lists and the like) as an array.

    Errors begin with `what`: TypeError for what is no plain array, being of a type that NumPy lacks, sparse, without
    memory or masked; ValueError for what is none, such as lists of different lengths.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{what} in a masked array, whose mask nobody looks at: pass values.filled(..) or values.data")
    try:
        if isinstance(values, Tensor):
            return host_array(values)
        return np.asarray(values)
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"{what} that are no plain array: {error}") from error
    except ValueError as error:
        raise ValueError(f"{what} that are no array: {error}") from error


def host_array(tensor: Tensor) -> Array:
    """The tensor as a contiguous array in host memory: a view where it is that already."""
    array: Array = tensor.detach().cpu().contiguous().resolve_neg().numpy()
    return array


def plain(tensor: Tensor) -> Tensor:
    """A gradient on the host whose values stand in memory, each as it is: autograd also hands over sparse ones, and
    ones that are to be negated when they are read. The tensor itself where it is that already."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.resolve_neg()
