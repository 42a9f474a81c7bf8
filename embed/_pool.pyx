# Native pooling and its backward. Signatures: _pool.pyi.
"""Native part of `pooling.py`."""

from libc.stdint cimport int64_t, uint8_t

from headrace.embed._rows cimport RowSource
from headrace.embed._threads cimport Threads, Workers

cdef extern from "pool.hpp" namespace "headrace" nogil:
    cdef cppclass Bags:
        const int64_t* query_ids
        const int64_t* offsets
        const float* weights
        const int64_t* columns
        const uint8_t* mean
        int64_t features
        int64_t rows

    bint offsets_are_sound(const int64_t*, int64_t, int64_t)
    int64_t first_outside(const int64_t*, int64_t, int64_t)
    int64_t first_above(const int64_t*, int64_t, int64_t)
    bint c_is_one_hot "headrace::is_one_hot"(const int64_t*, int64_t)
    void c_pool_forward "headrace::pool_forward"(
        const Bags&, const float**, int64_t, float*, int64_t, bint, const Workers&
    ) except +
    void c_bag_terms "headrace::bag_terms"(const Bags&, int64_t, int64_t*, float*, const Workers&) except +

    cdef cppclass Segments:
        const float* grad
        const int64_t* starts
        const float* factors
        const int64_t* positions
        const int64_t* position_offsets
        int64_t dim

    cdef enum TermKind:
        kPlain
        kWeighted
        kDivided

    void c_segment_sum "headrace::segment_sum"(const Segments&, TermKind, int64_t, float*, const Workers&) except +


cdef Workers _workers(Threads threads) noexcept:
    cdef Workers alone
    if threads is not None:
        return threads.workers()
    alone.pool = NULL
    alone.threads = 1
    return alone


def check_bags(
    const int64_t[::1] query_ids, const int64_t[::1] offsets, const int64_t[::1] positions,
    const int64_t[::1] position_offsets,
):
    cdef int64_t nnz = query_ids.shape[0], bags = offsets.shape[0] - 1, unique = position_offsets.shape[0] - 1
    cdef int64_t bad
    if bags < 0 or not offsets_are_sound(&offsets[0], bags, nnz):
        raise ValueError(f"offsets do not run from 0 to {nnz} without falling")
    if unique < 0 or not offsets_are_sound(&position_offsets[0], unique, positions.shape[0]):
        raise ValueError(f"position_offsets do not run from 0 to {positions.shape[0]} without falling")
    if nnz:
        bad = first_outside(&query_ids[0], nnz, unique)
        if bad >= 0:
            raise IndexError(f"query id {query_ids[bad]} at position {bad} is outside {unique} unique rows")
    if positions.shape[0]:
        bad = first_outside(&positions[0], positions.shape[0], nnz)
        if bad >= 0:
            raise IndexError(f"position {positions[bad]} is outside {nnz} ids")


def is_one_hot(const int64_t[::1] offsets):
    return c_is_one_hot(&offsets[0], offsets.shape[0] - 1)


cdef Bags _bags(
    const int64_t[::1] query_ids, const int64_t[::1] offsets, const float[::1] weights,
    const int64_t[::1] columns, const uint8_t[::1] mean,
) except *:
    cdef Bags bags
    bags.features = columns.shape[0]
    bags.rows = (offsets.shape[0] - 1) // bags.features
    if mean.shape[0] != bags.features or bags.rows * bags.features != offsets.shape[0] - 1:
        raise ValueError(f"{offsets.shape[0] - 1} bags for {bags.features} features")
    if weights is not None and weights.shape[0] != query_ids.shape[0]:
        raise ValueError(f"{weights.shape[0]} weights for {query_ids.shape[0]} ids")
    bags.query_ids = &query_ids[0] if query_ids.shape[0] else NULL
    bags.offsets = &offsets[0]
    bags.weights = &weights[0] if weights is not None and weights.shape[0] else NULL
    bags.columns = &columns[0]
    bags.mean = &mean[0]
    return bags


def pool_forward(
    RowSource source not None, const int64_t[::1] query_ids, const int64_t[::1] offsets, const float[::1] weights,
    const int64_t[::1] columns, const uint8_t[::1] mean, float[:, ::1] out, Threads threads=None,
):
    cdef int64_t f, dim = source.dim, stride = out.shape[1]
    cdef Bags bags
    cdef const float** rows
    cdef Workers workers = _workers(threads)
    cdef bint one_hot
    if columns.shape[0] == 0:
        return
    bags = _bags(query_ids, offsets, weights, columns, mean)
    if bags.rows != out.shape[0]:
        raise ValueError(f"{bags.rows} rows of bags for {out.shape[0]} rows of output")
    for f in range(bags.features):
        if columns[f] >= 0 and columns[f] > stride - dim:
            raise ValueError(f"feature {f} does not fit the output of {stride} columns")
    if bags.rows == 0 or stride == 0:
        return
    rows = source.begin(workers)
    try:
        with nogil:
            one_hot = weights is None and c_is_one_hot(bags.offsets, bags.rows * bags.features)
            c_pool_forward(bags, rows, dim, &out[0, 0], stride, one_hot, workers)
    finally:
        source.end()


def bag_terms(
    const int64_t[::1] offsets, const int64_t[::1] columns, const uint8_t[::1] mean, int64_t stride,
    int64_t[::1] starts, float[::1] divisors, Threads threads=None,
):
    cdef Bags bags
    cdef Workers workers = _workers(threads)
    if columns.shape[0] == 0 or starts.shape[0] == 0:
        return
    bags = _bags(starts, offsets, None, columns, mean)
    if offsets[offsets.shape[0] - 1] != starts.shape[0]:
        raise ValueError(f"offsets end at {offsets[offsets.shape[0] - 1]}, not at {starts.shape[0]}")
    if divisors is not None and divisors.shape[0] != starts.shape[0]:
        raise ValueError("starts and divisors differ in length")
    with nogil:
        c_bag_terms(bags, stride, &starts[0], &divisors[0] if divisors is not None else NULL, workers)


def segment_sum(
    const float[::1] grad, const int64_t[::1] starts, const float[::1] factors, bint divide,
    const int64_t[::1] positions, const int64_t[::1] position_offsets, float[:, ::1] out, Threads threads=None,
):
    cdef int64_t unique = out.shape[0], dim = out.shape[1], nnz = positions.shape[0], bad
    cdef Workers workers = _workers(threads)
    cdef Segments segments
    cdef TermKind kind = kPlain if factors is None else kDivided if divide else kWeighted
    if position_offsets.shape[0] != unique + 1 or position_offsets[unique] != nnz or starts.shape[0] != nnz:
        raise ValueError("positions, their offsets, starts and out do not fit each other")
    if factors is not None and factors.shape[0] != nnz:
        raise ValueError("factors and positions differ in length")
    if unique == 0 or dim == 0:
        return
    segments.grad = &grad[0] if grad.shape[0] else NULL
    segments.starts = &starts[0] if nnz else NULL
    segments.factors = &factors[0] if factors is not None and nnz else NULL
    segments.positions = &positions[0] if nnz else NULL
    segments.position_offsets = &position_offsets[0]
    segments.dim = dim
    with nogil:
        bad = first_above(segments.starts, nnz, max(grad.shape[0] - dim, -1))
        if bad < 0:
            c_segment_sum(segments, kind, unique, &out[0, 0], workers)
    if bad >= 0:
        raise IndexError(f"position {bad} starts at {starts[bad]} of a gradient of {grad.shape[0]} floats")
