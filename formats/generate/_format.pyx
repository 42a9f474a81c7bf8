# distutils: language = c++
"""Native formatter of Criteo text; the twin in plain Python is `_format_py.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t

import numpy as np


cdef extern from "format_criteo.hpp" namespace "headrace" nogil:
    cdef struct CriteoColumns:
        const uint8_t* labels
        const int64_t* dense
        const uint8_t* dense_valid
        const uint32_t* ids
        const uint8_t* ids_valid
        size_t rows
        size_t n_dense
        size_t n_sparse

    size_t text_bytes(const CriteoColumns& columns)
    char* write_text(const CriteoColumns& columns, char* out)


def format_columns(labels, dense, dense_valid, ids, ids_valid):
    # An empty array has no first element to point at: one spare element each keeps the addresses valid.
    return _impl(
        labels is not None,
        np.zeros(1, np.uint8) if labels is None or not labels.size else labels,
        dense.reshape(-1) if dense.size else np.zeros(1, np.int64),
        dense_valid.reshape(-1).view(np.uint8) if dense.size else np.zeros(1, np.uint8),
        ids.reshape(-1) if ids.size else np.zeros(1, np.uint32),
        ids_valid.reshape(-1).view(np.uint8) if ids.size else np.zeros(1, np.uint8),
        dense.shape[1],
        dense.shape[0],
        ids.shape[0],
    )


cdef bytes _impl(
    bint has_labels,
    const uint8_t[::1] labels,
    const int64_t[::1] dense,
    const uint8_t[::1] dense_valid,
    const uint32_t[::1] ids,
    const uint8_t[::1] ids_valid,
    size_t rows,
    size_t n_dense,
    size_t n_sparse,
):
    cdef CriteoColumns columns
    cdef size_t size
    cdef bytes text
    cdef char* out
    columns.labels = &labels[0] if has_labels else NULL
    columns.dense = &dense[0]
    columns.dense_valid = &dense_valid[0]
    columns.ids = &ids[0]
    columns.ids_valid = &ids_valid[0]
    columns.rows = rows
    columns.n_dense = n_dense
    columns.n_sparse = n_sparse
    with nogil:
        size = text_bytes(columns)
    text = PyBytes_FromStringAndSize(NULL, size)
    out = PyBytes_AS_STRING(text)
    with nogil:
        write_text(columns, out)  # the object is not shared yet: no reader can see it half filled
    return text
