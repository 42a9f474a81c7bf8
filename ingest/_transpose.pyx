# distutils: language = c++
"""Native transpose of query ids; the checked front is `headrace.ingest.transpose`."""

import numpy as np

from libc.stdint cimport int64_t, uint32_t


cdef extern from "transpose.hpp" namespace "headrace" nogil:
    size_t transpose(const uint32_t*, size_t, size_t, int64_t*, int64_t*, int64_t*) except +


def transpose_impl(const uint32_t[::1] query_ids, size_t num_unique):
    cdef size_t nnz = query_ids.shape[0]
    if nnz > 0xFFFFFFFF:
        raise ValueError(f"{nnz} query ids; at most 2**32 - 1 can be transposed at once")
    wide = np.empty(nnz, np.int64)
    positions = np.empty(nnz, np.int64)
    offsets = np.empty(num_unique + 1, np.int64)
    cdef int64_t[::1] wide_view = wide
    cdef int64_t[::1] positions_view = positions
    cdef int64_t[::1] offsets_view = offsets
    cdef const uint32_t* ids = &query_ids[0] if nnz else NULL
    cdef int64_t* out_wide = &wide_view[0] if nnz else NULL
    cdef int64_t* out_positions = &positions_view[0] if nnz else NULL
    cdef size_t done
    with nogil:
        done = transpose(ids, nnz, num_unique, out_wide, out_positions, &offsets_view[0])
    if done != nnz:
        raise IndexError(f"query id {query_ids[done]} at position {done} is not below {num_unique} unique rows")
    return wide, positions, offsets
