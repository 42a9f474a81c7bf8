# Native pooling and its backward. Signatures: _pool.pyi.
"""Native part of `pooling.py`."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from headrace.embed._rows cimport RowSource
from headrace.embed._threads cimport Threads, Workers

cdef extern from "bag_checks.hpp" namespace "headrace" nogil:
    cdef cppclass Bags:
        const int64_t* query_ids
        const int64_t* offsets
        const float* weights
        const int64_t* columns
        const uint8_t* mean
        int64_t features
        int64_t rows

    bint offsets_are_sound(const int64_t*, int64_t, int64_t, const Workers&) except +
    int64_t first_outside(const int64_t*, int64_t, int64_t, const Workers&) except +
    int64_t first_above(const int64_t*, int64_t, int64_t)
    bint c_is_one_hot "headrace::is_one_hot"(const int64_t*, int64_t, const Workers&) except +
    int64_t first_of_other_table(const Bags&, const uint32_t*, const uint32_t*, const Workers&) except +


cdef extern from "pool.hpp" namespace "headrace" nogil:
    void c_pool_forward "headrace::pool_forward"(
        const Bags&, const float**, int64_t, float*, int64_t, bint, const Workers&
    ) except +


cdef extern from "pool_backward.hpp" namespace "headrace" nogil:
    cdef cppclass Scatter:
        const float* grad
        int64_t stride
        int64_t dim
        float* out
        uint8_t* seen

    cdef cppclass TableOrder:
        const int64_t* features
        const int64_t* starts
        int64_t tables
        int64_t single

    void c_pool_backward "headrace::pool_backward"(
        const Bags&, const Scatter&, const TableOrder&, int64_t, const Workers&
    ) except +

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
    const int64_t[::1] position_offsets, Threads threads=None,
):
    cdef int64_t nnz = query_ids.shape[0], unique = position_offsets.shape[0] - 1, bad
    cdef Workers workers = _workers(threads)
    if not _are_sound(offsets, nnz, workers):
        raise ValueError(f"offsets do not run from 0 to {nnz} without falling")
    if not _are_sound(position_offsets, positions.shape[0], workers):
        raise ValueError(f"position_offsets do not run from 0 to {positions.shape[0]} without falling")
    bad = _first_outside(query_ids, unique, workers)
    if bad >= 0:
        raise IndexError(f"query id {query_ids[bad]} at position {bad} is outside {unique} unique rows")
    bad = _first_outside(positions, nnz, workers)
    if bad >= 0:
        raise IndexError(f"position {positions[bad]} is outside {nnz} ids")


cdef bint _are_sound(const int64_t[::1] offsets, int64_t nnz, Workers workers) except *:
    cdef bint sound
    if offsets.shape[0] == 0:
        return False
    with nogil:
        sound = offsets_are_sound(&offsets[0], offsets.shape[0] - 1, nnz, workers)
    return sound


cdef int64_t _first_outside(const int64_t[::1] values, int64_t limit, Workers workers) except -2:
    cdef int64_t bad
    if values.shape[0] == 0:
        return -1
    with nogil:
        bad = first_outside(&values[0], values.shape[0], limit, workers)
    return bad


def is_one_hot(const int64_t[::1] offsets):
    return c_is_one_hot(&offsets[0], offsets.shape[0] - 1, _workers(None))


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
            one_hot = weights is None and c_is_one_hot(bags.offsets, bags.rows * bags.features, workers)
            c_pool_forward(bags, rows, dim, &out[0, 0], stride, one_hot, workers)
    finally:
        source.end()


def check_tables(
    const int64_t[::1] query_ids, const int64_t[::1] offsets, const uint32_t[::1] feature_tables,
    const uint32_t[::1] unique_tables, Threads threads=None,
):
    cdef Workers workers = _workers(threads)
    cdef Bags bags
    cdef int64_t bad
    if query_ids.shape[0] == 0:
        return
    bags.features = feature_tables.shape[0]
    bags.rows = (offsets.shape[0] - 1) // bags.features
    bags.query_ids = &query_ids[0]
    bags.offsets = &offsets[0]
    with nogil:
        bad = first_of_other_table(bags, &feature_tables[0], &unique_tables[0], workers)
    if bad >= 0:
        raise ValueError(f"query id {query_ids[bad]} at position {bad} is a row of another table than its feature's")


def pool_backward(
    const float[:, :] grad, const int64_t[::1] query_ids, const int64_t[::1] offsets, const float[::1] weights,
    const int64_t[::1] columns, const uint8_t[::1] mean, const int64_t[::1] features, const int64_t[::1] starts,
    int64_t single, uint8_t[::1] seen, float[:, ::1] out, Threads threads=None,
):
    cdef int64_t k, f, unique = out.shape[0], dim = out.shape[1]
    cdef Workers workers = _workers(threads)
    cdef Bags bags
    cdef Scatter scatter
    cdef TableOrder order
    if unique == 0:
        return
    if grad.strides[0] < 0 or grad.strides[0] % <Py_ssize_t> sizeof(float) or grad.strides[1] != sizeof(float):
        raise ValueError("the values of a row of gradients must lie side by side")
    bags = _bags(query_ids, offsets, weights, columns, mean)
    if bags.rows != grad.shape[0] or seen.shape[0] != unique:
        raise ValueError(f"{bags.rows} rows of bags for {grad.shape[0]} rows of gradients")
    for k in range(features.shape[0]):
        f = features[k]
        if not 0 <= f < bags.features or not 0 <= columns[f] <= grad.shape[1] - dim:
            raise ValueError(f"feature {f} does not fit the gradient of {grad.shape[1]} columns")
    scatter.grad = &grad[0, 0] if grad.shape[0] and grad.shape[1] else NULL
    scatter.stride = grad.strides[0] // <Py_ssize_t> sizeof(float)
    scatter.dim = dim
    scatter.out = &out[0, 0]
    scatter.seen = &seen[0]
    order.features = &features[0] if features.shape[0] else NULL
    order.starts = &starts[0]
    order.tables = starts.shape[0] - 1
    order.single = single
    with nogil:
        c_pool_backward(bags, scatter, order, unique, workers)


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
