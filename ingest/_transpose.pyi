import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

def transpose_impl(query_ids: npt.NDArray[np.uint32], num_unique: int) -> tuple[I64, I64, I64]: ...
