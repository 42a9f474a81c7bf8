import numpy as np
import numpy.typing as npt

def format_criteo(
    labels: npt.NDArray[np.uint8] | None,
    dense: npt.NDArray[np.int64],
    dense_valid: npt.NDArray[np.bool_],
    ids: npt.NDArray[np.uint32],
    ids_valid: npt.NDArray[np.bool_],
) -> bytes:
    """Lines of Criteo text: label, dense values, ids, separated by tabs, each line ended by LF.

    labels: uint8 [rows] of 0 and 1, or None for lines without that field
    dense: int64 [n_dense, rows], decimal; dense_valid: bool, same shape; False gives an empty field
    ids: uint32 [n_sparse, rows], 8 lower-case hexadecimal digits; ids_valid: bool, same shape

    All arrays are C-contiguous and may be read-only; the bytes are new. The GIL is released while they are written.
    Raises TypeError for a wrong dtype, ValueError for a wrong shape, layout or label (naming the row).
    """
