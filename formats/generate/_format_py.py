"""Criteo text in plain Python: the readable twin of the native formatter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.formats.generate.criteo_text import check_columns


def format_criteo(
    labels: npt.NDArray[np.uint8] | None,
    dense: npt.NDArray[np.int64],
    dense_valid: npt.NDArray[np.bool_],
    ids: npt.NDArray[np.uint32],
    ids_valid: npt.NDArray[np.bool_],
) -> bytes:
    """Same arguments, result and errors as ``criteo_text.format_criteo``."""
    check_columns(labels, dense, dense_valid, ids, ids_valid)
    lines = []
    for row in range(dense.shape[1]):
        fields = [] if labels is None else [str(int(labels[row]))]
        fields += [str(int(v)) if ok else "" for v, ok in zip(dense[:, row], dense_valid[:, row], strict=True)]
        fields += [f"{int(v):08x}" if ok else "" for v, ok in zip(ids[:, row], ids_valid[:, row], strict=True)]
        lines.append("\t".join(fields) + "\n")
    return "".join(lines).encode("ascii")
