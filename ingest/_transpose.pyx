# distutils: language = c++
"""Native transpose of query ids; the checked front is `headrace.ingest.transpose`."""

from libc.stdint cimport int32_t, int64_t, uint32_t


cdef extern from "transpose.hpp" namespace "headrace" nogil:
    size_t transpose(const uint32_t*, size_t, size_t, int64_t*, int64_t*, int64_t*) except +


def transpose_impl(
    const uint32_t[::1] query_ids,
    size_t num_unique,
    int64_t[::1] wide not None,
    int64_t[::1] positions not None,
    int64_t[::1] offsets not None,
):
    cdef size_t nnz = query_ids.shape[0]
    if nnz > 0xFFFFFFFF:
        raise ValueError(f"{nnz} query ids; at most 2**32 - 1 can be transposed at once")
    cdef size_t found = offsets.shape[0]
    if wide.shape[0] != query_ids.shape[0] or positions.shape[0] != query_ids.shape[0] or found != num_unique + 1:
        raise ValueError(f"outputs of another size than {nnz} ids of {num_unique} rows have")
    cdef const uint32_t* ids = &query_ids[0] if nnz else NULL
    cdef int64_t* out_wide = &wide[0] if nnz else NULL
    cdef int64_t* out_positions = &positions[0] if nnz else NULL
    cdef size_t done
    with nogil:
        done = transpose(ids, nnz, num_unique, out_wide, out_positions, &offsets[0])
    if done != nnz:
        raise IndexError(f"query id {query_ids[done]} at position {done} is not below {num_unique} unique rows")


def fill_one_hot(int32_t[::1] lengths not None, int64_t[::1] offsets not None):
    cdef int64_t count = lengths.shape[0]
    cdef int64_t i
    if offsets.shape[0] != count + 1:
        raise ValueError(f"{offsets.shape[0]} offsets of {count} bags")
    with nogil:
        for i in range(count):
            lengths[i] = 1
        for i in range(count + 1):
            offsets[i] = i
