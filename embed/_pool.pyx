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

    cdef cppclass FeatureIds:
        const int64_t* query_ids
        const int64_t* offsets
        int64_t features
        int64_t rows
        const uint32_t* feature_tables
        const uint32_t* unique_tables
        int64_t unique

    cdef enum OffsetsKind:
        kUnsound
        kSound
        kOneHot

    OffsetsKind kind_of_offsets(const int64_t*, int64_t, int64_t, const Workers&) except +
    int64_t first_outside(const int64_t*, int64_t, int64_t, const Workers&) except +
    int64_t first_above(const int64_t*, int64_t, int64_t)
    bint all_ids_are_sound(const FeatureIds&, int64_t, const Workers&) except +
    int64_t first_of_other_table(const FeatureIds&, int64_t)


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
        const Bags&, const Scatter&, const TableOrder&, int64_t, bint, const Workers&
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
    const int64_t[::1] query_ids, const int64_t[::1] offsets, const uint32_t[::1] feature_tables,
    const uint32_t[::1] unique_tables, Threads threads=None,
):
    cdef int64_t nnz = query_ids.shape[0]
    cdef Workers workers = _workers(threads)
    cdef OffsetsKind kind = _kind_of(offsets, nnz, workers)
    if kind == kUnsound:
        raise ValueError(f"offsets do not run from 0 to {nnz} without falling")
    _check_ids(query_ids, offsets, unique_tables.shape[0], feature_tables, unique_tables, workers)
    return kind == kOneHot


def check_occurrences(
    const int64_t[::1] positions, const int64_t[::1] position_offsets, int64_t nnz, Threads threads=None,
):
    cdef Workers workers = _workers(threads)
    cdef int64_t bad
    if _kind_of(position_offsets, positions.shape[0], workers) == kUnsound:
        raise ValueError(f"position_offsets do not run from 0 to {positions.shape[0]} without falling")
    bad = _first_outside(positions, nnz, workers)
    if bad >= 0:
        raise IndexError(f"position {positions[bad]} is outside {nnz} ids")


cdef OffsetsKind _kind_of(const int64_t[::1] offsets, int64_t nnz, Workers workers) except *:
    cdef OffsetsKind kind
    if offsets.shape[0] == 0:
        return kUnsound
    with nogil:
        kind = kind_of_offsets(&offsets[0], offsets.shape[0] - 1, nnz, workers)
    return kind


cdef int _check_ids(
    const int64_t[::1] query_ids, const int64_t[::1] offsets, int64_t unique, const uint32_t[::1] feature_tables,
    const uint32_t[::1] unique_tables, Workers workers,
) except -1:
    cdef FeatureIds ids
    cdef bint sound
    cdef int64_t bad, nnz = query_ids.shape[0]
    ids.features = feature_tables.shape[0]
    ids.rows = (offsets.shape[0] - 1) // ids.features if ids.features else 0
    if ids.rows * ids.features != offsets.shape[0] - 1:
        raise ValueError(f"{offsets.shape[0] - 1} bags for {ids.features} features")
    if nnz == 0:
        return 0
    ids.query_ids = &query_ids[0]
    ids.offsets = &offsets[0]
    ids.feature_tables = &feature_tables[0]
    ids.unique_tables = &unique_tables[0] if unique else NULL
    ids.unique = unique
    with nogil:
        sound = all_ids_are_sound(ids, nnz, workers)
    if sound:
        return 0
    bad = _first_outside(query_ids, unique, workers)
    if bad >= 0:
        raise IndexError(f"query id {query_ids[bad]} at position {bad} is outside {unique} unique rows")
    bad = first_of_other_table(ids, nnz)
    raise ValueError(f"query id {query_ids[bad]} at position {bad} is a row of another table than its feature's")


cdef int64_t _first_outside(const int64_t[::1] values, int64_t limit, Workers workers) except -2:
    cdef int64_t bad
    if values.shape[0] == 0:
        return -1
    with nogil:
        bad = first_outside(&values[0], values.shape[0], limit, workers)
    return bad


cdef Bags _bags(
    const int64_t[::1] query_ids, const int64_t[::1] offsets, const float[::1] weights,
    const int64_t[::1] columns, const uint8_t[::1] mean, bint one_hot,
) except *:
    cdef Bags bags
    bags.features = columns.shape[0]
    bags.rows = (offsets.shape[0] - 1) // bags.features
    if mean.shape[0] != bags.features or bags.rows * bags.features != offsets.shape[0] - 1:
        raise ValueError(f"{offsets.shape[0] - 1} bags for {bags.features} features")
    if weights is not None and weights.shape[0] != query_ids.shape[0]:
        raise ValueError(f"{weights.shape[0]} weights for {query_ids.shape[0]} ids")
    if one_hot and query_ids.shape[0] != bags.rows * bags.features:
        raise ValueError(f"{query_ids.shape[0]} ids for {bags.rows * bags.features} bags of one id each")
    bags.query_ids = &query_ids[0] if query_ids.shape[0] else NULL
    bags.offsets = &offsets[0]
    bags.weights = &weights[0] if weights is not None and weights.shape[0] else NULL
    bags.columns = &columns[0]
    bags.mean = &mean[0]
    return bags


def pool_forward(
    RowSource source not None, const int64_t[::1] query_ids, const int64_t[::1] offsets, const float[::1] weights,
    const int64_t[::1] columns, const uint8_t[::1] mean, float[:, ::1] out, Threads threads=None, *,
    bint one_hot=False,
):
    cdef int64_t f, dim = source.dim, stride = out.shape[1]
    cdef Bags bags
    cdef const float** rows
    cdef Workers workers = _workers(threads)
    if columns.shape[0] == 0:
        return
    bags = _bags(query_ids, offsets, weights, columns, mean, one_hot)
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
            c_pool_forward(bags, rows, dim, &out[0, 0], stride, one_hot and bags.weights == NULL, workers)
    finally:
        source.end()


def pool_backward(
    const float[:, :] grad, const int64_t[::1] query_ids, const int64_t[::1] offsets, const float[::1] weights,
    const int64_t[::1] columns, const uint8_t[::1] mean, const int64_t[::1] features, const int64_t[::1] starts,
    int64_t single, uint8_t[::1] seen, float[:, ::1] out, Threads threads=None, *, bint one_hot=False,
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
    bags = _bags(query_ids, offsets, weights, columns, mean, one_hot)
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
        c_pool_backward(bags, scatter, order, unique, one_hot, workers)


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
