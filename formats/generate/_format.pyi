"""Native formatter of Criteo text; `headrace.formats.generate.criteo_text.format_criteo` is its front."""

import numpy as np
import numpy.typing as npt

def format_columns(
    labels: npt.NDArray[np.uint8] | None,
    dense: npt.NDArray[np.int64],
    dense_valid: npt.NDArray[np.bool_],
    ids: npt.NDArray[np.uint32],
    ids_valid: npt.NDArray[np.bool_],
) -> bytes:
    """As ``criteo_text.format_criteo``, of arrays that it has checked: their shapes are believed."""
