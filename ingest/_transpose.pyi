import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

def transpose_impl(query_ids: npt.NDArray[np.uint32], num_unique: int, wide: I64, positions: I64, offsets: I64) -> None:
    """Fill `wide` [nnz], `positions` [nnz] and `offsets` [num_unique + 1]; the GIL is released meanwhile."""

def fill_one_hot(lengths: npt.NDArray[np.int32], offsets: I64) -> None:
    """Lengths [n] and offsets [n + 1] of bags of one id each; the GIL is released meanwhile."""
