// Pooling of bags and the segment sum that is its backward; all sums are float32, in ascending position, starting
// from their first term (an empty sum is 0).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "parallel.hpp"
#include "update.hpp"
#include "vector_clones.hpp"

namespace headrace {

// F features of B bags each, feature-major. column[f] is where feature f starts in an output row, -1: not pooled.
struct Bags {
    const int64_t* query_ids;
    const int64_t* offsets;
    const float* weights;
    const int64_t* columns;
    const uint8_t* mean;
    int64_t features;
    int64_t rows;
};

inline bool offsets_are_sound(const int64_t* offsets, int64_t bags, int64_t nnz) noexcept {
    if (offsets[0] != 0 || offsets[bags] != nnz) return false;
    bool sound = true;
    for (int64_t bag = 0; bag < bags; ++bag) sound &= offsets[bag] <= offsets[bag + 1];
    return sound;
}

inline int64_t first_outside(const int64_t* values, int64_t n, int64_t limit) noexcept {
    uint64_t outside = 0;
    for (int64_t i = 0; i < n; ++i) outside |= static_cast<uint64_t>(values[i]) >= static_cast<uint64_t>(limit);
    if (!outside) return -1;
    for (int64_t i = 0; i < n; ++i)
        if (static_cast<uint64_t>(values[i]) >= static_cast<uint64_t>(limit)) return i;
    return -1;
}

inline int64_t first_above(const int64_t* values, int64_t n, int64_t limit) noexcept {
    int64_t highest = limit;
    for (int64_t i = 0; i < n; ++i) highest = std::max(highest, values[i]);
    if (highest <= limit) return -1;
    return std::find_if(values, values + n, [limit](int64_t v) { return v > limit; }) - values;
}

inline bool is_one_hot(const int64_t* offsets, int64_t bags) noexcept {
    bool one = true;
    for (int64_t bag = 0; bag < bags; ++bag) one &= offsets[bag + 1] - offsets[bag] == 1;
    return one;
}

constexpr int64_t kLine = 16;              // floats of a cache line
constexpr int64_t kLargestLocal = 128;     // floats of a sum that is built beside the output
constexpr int64_t kTile = 64;              // output rows that stay in cache over the features
constexpr int64_t kAheadIds = 16;          // ids looked ahead by the software prefetch
constexpr int64_t kAheadRows = 8;          // rows of the output's gradient looked ahead
constexpr int64_t kStreamBytes = 1 << 21;  // an output larger than this is written past the cache

// Loops over columns with a length that the compiler knows, for the usual dims; `Dim` 0 is any.
template <int64_t Dim, bool first>
HEADRACE_INLINE void add_weighted(const float* __restrict row, float weight, int64_t dim,
                                  float* __restrict out) noexcept {
    const int64_t n = Dim ? Dim : dim;
    for (int64_t j = 0; j < n; ++j) out[j] = first ? row[j] * weight : out[j] + row[j] * weight;
}

template <int64_t Dim>
HEADRACE_INLINE void pool_bag(const Bags& bags, int64_t bag, bool mean, const float* const* rows, int64_t dim,
                              float* __restrict out) noexcept {
    const int64_t first = bags.offsets[bag], last = bags.offsets[bag + 1];
    const int64_t n = Dim ? Dim : dim;
    if (first == last) {
        for (int64_t j = 0; j < n; ++j) out[j] = 0.0f;
        return;
    }
    const float* weights = bags.weights;
    const int64_t* ids = bags.query_ids;
    add_weighted<Dim, true>(rows[ids[first]], weights ? weights[first] : 1.0f, dim, out);
    for (int64_t p = first + 1; p < last; ++p)
        add_weighted<Dim, false>(rows[ids[p]], weights ? weights[p] : 1.0f, dim, out);
    if (mean && last - first > 1) {
        const float count = static_cast<float>(last - first);
        for (int64_t j = 0; j < n; ++j) out[j] = out[j] / count;
    }
}

// Copies a row; with `stream`, whole cache lines past the cache.
HEADRACE_INLINE void copy_row(const float* from, int64_t dim, bool stream, float* to) noexcept {
#ifdef __SSE2__
    if (stream) {
        for (int64_t j = 0; j < dim; j += 4) _mm_stream_ps(to + j, _mm_loadu_ps(from + j));
        return;
    }
#endif
    (void)stream;
    std::memcpy(to, from, static_cast<size_t>(dim) * sizeof(float));
}

inline bool can_stream(const Bags& bags, int64_t dim, const float* out, int64_t stride) noexcept {
    bool fits = bags.rows * stride * static_cast<int64_t>(sizeof(float)) > kStreamBytes && dim % kLine == 0 &&
                stride % kLine == 0 && reinterpret_cast<uintptr_t>(out) % 64 == 0;
    for (int64_t f = 0; f < bags.features; ++f) fits = fits && (bags.columns[f] < 0 || bags.columns[f] % kLine == 0);
    return fits;
}

HEADRACE_INLINE void prefetch_bag(const Bags& bags, int64_t bag, const float* const* rows, int64_t dim) noexcept {
    const int64_t first = bags.offsets[bag], last = std::min(bags.offsets[bag + 1], first + kAheadIds);
    for (int64_t p = first; p < last; ++p) prefetch_row<0>(rows[bags.query_ids[p]], dim);
}

template <int64_t Dim>
HEADRACE_INLINE void pool_tile(const Bags& bags, const float* const* rows, int64_t dim, float* out, int64_t stride,
                               bool one_hot, bool stream, int64_t start, int64_t stop) noexcept {
    const int64_t bag_count = bags.rows * bags.features;
    for (int64_t f = 0; f < bags.features; ++f) {
        if (bags.columns[f] < 0) continue;
        for (int64_t b = start; b < stop; ++b) {
            const int64_t bag = f * bags.rows + b;
            float* to = out + b * stride + bags.columns[f];
            if (one_hot) {
                // past the tile's end the next ids are those of the next feature's tile
                const int64_t ahead =
                    b + kAheadIds < stop ? bag + kAheadIds : bag + kAheadIds - (stop - start) + bags.rows;
                if (ahead < bag_count) prefetch_row<0, Dim>(rows[bags.query_ids[ahead]], dim);
                copy_row(rows[bags.query_ids[bag]], Dim ? Dim : dim, stream, to);
            } else {
                if (bag + 2 < bag_count) prefetch_bag(bags, bag + 2, rows, dim);
                if (stream && dim <= kLargestLocal) {
                    alignas(64) float sum[kLargestLocal];
                    pool_bag<Dim>(bags, bag, bags.mean[f] != 0, rows, dim, sum);
                    copy_row(sum, Dim ? Dim : dim, true, to);
                } else {
                    pool_bag<Dim>(bags, bag, bags.mean[f] != 0, rows, dim, to);
                }
            }
        }
    }
}

HEADRACE_VECTOR_CLONES
static void pool_rows(const Bags& bags, const float* const* rows, int64_t dim, float* out, int64_t stride, bool one_hot,
                      bool stream, int64_t start, int64_t stop) noexcept {
    switch (dim) {
        case 16:
            return pool_tile<16>(bags, rows, dim, out, stride, one_hot, stream, start, stop);
        case 32:
            return pool_tile<32>(bags, rows, dim, out, stride, one_hot, stream, start, stop);
        case 64:
            return pool_tile<64>(bags, rows, dim, out, stride, one_hot, stream, start, stop);
        case 128:
            return pool_tile<128>(bags, rows, dim, out, stride, one_hot, stream, start, stop);
        default:
            return pool_tile<0>(bags, rows, dim, out, stride, one_hot, stream, start, stop);
    }
}

// Unique row u, at rows[u] -> out [B, stride]; output rows are shared out over the workers.
inline void pool_forward(const Bags& bags, const float* const* rows, int64_t dim, float* out, int64_t stride,
                         bool one_hot, const Workers& workers) {
    const bool stream = can_stream(bags, dim, out, stride);
    const int64_t tiles = (bags.rows + kTile - 1) / kTile;
    workers.run(tiles, 1, [&](int64_t begin, int64_t end) {
        for (int64_t tile = begin; tile < end; ++tile)
            pool_rows(bags, rows, dim, out, stride, one_hot, stream, tile * kTile,
                      std::min((tile + 1) * kTile, bags.rows));
#ifdef __SSE2__
        if (stream) _mm_sfence();
#endif
    });
}

enum TermKind { kPlain, kWeighted, kDivided };

template <TermKind kind>
HEADRACE_INLINE float term(float gradient, float factor) noexcept {
    if constexpr (kind == kWeighted) return gradient * factor;
    if constexpr (kind == kDivided) return gradient / factor;
    return gradient;
}

// What the segment sum reads: out[u] = sum over the positions p of row u, ascending, of
// term(grad[starts[p] : + dim], factors[p]).
struct Segments {
    const float* grad;
    const int64_t* starts;
    const float* factors;
    const int64_t* positions;
    const int64_t* position_offsets;
    int64_t dim;
};

template <TermKind kind, int64_t Dim>
HEADRACE_INLINE void sum_segment(const Segments& s, int64_t u, int64_t last, float* __restrict to) noexcept {
    const int64_t n = Dim ? Dim : s.dim;
    bool empty = true;
    for (int64_t k = s.position_offsets[u]; k < s.position_offsets[u + 1]; ++k) {
        if (k + kAheadIds < last) {
            const int64_t ahead = s.starts[s.positions[k + kAheadIds]];
            if (ahead >= 0) prefetch_row<0>(s.grad + ahead, s.dim);
        }
        const int64_t p = s.positions[k];
        if (s.starts[p] < 0) continue;
        const float* __restrict from = s.grad + s.starts[p];
        const float factor = kind == kPlain ? 1.0f : s.factors[p];
        if (empty)
            for (int64_t j = 0; j < n; ++j) to[j] = term<kind>(from[j], factor);
        else
            for (int64_t j = 0; j < n; ++j) to[j] = to[j] + term<kind>(from[j], factor);
        empty = false;
    }
    if (empty)
        for (int64_t j = 0; j < n; ++j) to[j] = 0.0f;
}

template <TermKind kind, int64_t Dim>
HEADRACE_INLINE void sum_segments(const Segments& s, int64_t begin, int64_t end, float* out) noexcept {
    const int64_t last = s.position_offsets[end];
    for (int64_t u = begin; u < end; ++u) sum_segment<kind, Dim>(s, u, last, out + u * s.dim);
}

template <TermKind kind>
HEADRACE_INLINE void sum_segments_of(const Segments& s, int64_t begin, int64_t end, float* out) noexcept {
    switch (s.dim) {
        case 16:
            return sum_segments<kind, 16>(s, begin, end, out);
        case 32:
            return sum_segments<kind, 32>(s, begin, end, out);
        case 64:
            return sum_segments<kind, 64>(s, begin, end, out);
        default:
            return sum_segments<kind, 0>(s, begin, end, out);
    }
}

HEADRACE_VECTOR_CLONES
static void sum_rows(const Segments& s, TermKind kind, int64_t begin, int64_t end, float* out) noexcept {
    switch (kind) {
        case kPlain:
            return sum_segments_of<kPlain>(s, begin, end, out);
        case kWeighted:
            return sum_segments_of<kWeighted>(s, begin, end, out);
        default:
            return sum_segments_of<kDivided>(s, begin, end, out);
    }
}

// Unique rows are shared out over the workers, so that each sum is one thread's, in the order of its positions.
inline void segment_sum(const Segments& s, TermKind kind, int64_t unique, float* out, const Workers& workers) {
    constexpr int64_t kLeast = 512;
    workers.run(unique, kLeast, [&](int64_t begin, int64_t end) { sum_rows(s, kind, begin, end, out); });
}

// Gradients of pooled features, added into those of unique rows; `seen` [unique] begins as 0.
struct Scatter {
    const float* grad;
    int64_t stride;
    int64_t dim;
    float* out;
    uint8_t* seen;
};

template <TermKind kind, int64_t Dim>
HEADRACE_INLINE void scatter_bag(const Bags& bags, const Scatter& s, int64_t f, int64_t b) noexcept {
    const int64_t n = Dim ? Dim : s.dim;
    const int64_t bag = f * bags.rows + b;
    const int64_t first = bags.offsets[bag], last = bags.offsets[bag + 1];
    const float* __restrict from = s.grad + b * s.stride + bags.columns[f];
    for (int64_t p = first; p < last; ++p) {
        const int64_t u = bags.query_ids[p];
        float* __restrict to = s.out + u * s.dim;
        float factor = 1.0f;
        if constexpr (kind == kWeighted) factor = bags.weights[p];
        if constexpr (kind == kDivided) factor = static_cast<float>(last - first);
        if (s.seen[u])
            for (int64_t j = 0; j < n; ++j) to[j] = to[j] + term<kind>(from[j], factor);
        else
            for (int64_t j = 0; j < n; ++j) to[j] = term<kind>(from[j], factor);
        s.seen[u] = 1;
    }
}

// Asks for the rows that the bags of feature f will add to a few output rows later.
template <int64_t Dim>
HEADRACE_INLINE void prefetch_targets(const Bags& bags, const Scatter& s, int64_t f, int64_t b) noexcept {
    if (b + kAheadRows >= bags.rows) return;
    const int64_t bag = f * bags.rows + b + kAheadRows;
    const int64_t first = bags.offsets[bag], last = std::min(bags.offsets[bag + 1], first + kAheadIds);
    for (int64_t p = first; p < last; ++p) prefetch_row<1, Dim>(s.out + bags.query_ids[p] * s.dim, s.dim);
    prefetch_row<0, Dim>(s.grad + (b + kAheadRows) * s.stride + bags.columns[f], s.dim);
}

template <TermKind kind, int64_t Dim>
HEADRACE_INLINE void scatter_bags(const Bags& bags, const Scatter& s, int64_t f, int64_t start, int64_t stop) noexcept {
    for (int64_t b = start; b < stop; ++b) {
        prefetch_targets<Dim>(bags, s, f, b);
        scatter_bag<kind, Dim>(bags, s, f, b);
    }
}

template <int64_t Dim>
HEADRACE_INLINE void scatter_rows_of(const Bags& bags, const Scatter& s, int64_t f, int64_t start,
                                     int64_t stop) noexcept {
    if (bags.weights) return scatter_bags<kWeighted, Dim>(bags, s, f, start, stop);
    if (bags.mean[f]) return scatter_bags<kDivided, Dim>(bags, s, f, start, stop);
    return scatter_bags<kPlain, Dim>(bags, s, f, start, stop);
}

// The bags of feature f in output rows [start, stop).
HEADRACE_VECTOR_CLONES
static void scatter_rows(const Bags& bags, const Scatter& s, int64_t f, int64_t start, int64_t stop) noexcept {
    switch (s.dim) {
        case 16:
            return scatter_rows_of<16>(bags, s, f, start, stop);
        case 32:
            return scatter_rows_of<32>(bags, s, f, start, stop);
        case 64:
            return scatter_rows_of<64>(bags, s, f, start, stop);
        default:
            return scatter_rows_of<0>(bags, s, f, start, stop);
    }
}

// Features by table: `features` lists those that are pooled, table after table, table k from starts[k] on (the tables
// with one feature first, `single` of them). No row is of two tables.
struct TableOrder {
    const int64_t* features;
    const int64_t* starts;
    int64_t tables;
    int64_t single;
};

// Tables are shared out over the workers: each row's sum is one thread's. Within a table positions ascend, since those
// of one feature do, and features of one table come one after the other.
inline void pool_backward(const Bags& bags, const Scatter& s, const TableOrder& order, int64_t unique,
                          const Workers& workers) {
    workers.run(order.single, 1, [&](int64_t begin, int64_t end) {
        for (int64_t start = 0; start < bags.rows; start += kTile)
            for (int64_t k = begin; k < end; ++k)
                scatter_rows(bags, s, order.features[k], start, std::min(start + kTile, bags.rows));
    });
    workers.run(order.tables - order.single, 1, [&](int64_t begin, int64_t end) {
        const int64_t first = order.starts[order.single + begin], last = order.starts[order.single + end];
        for (int64_t k = first; k < last; ++k) scatter_rows(bags, s, order.features[k], 0, bags.rows);
    });
    workers.run(unique, kTile * kTile, [&](int64_t begin, int64_t end) {
        for (int64_t u = begin; u < end; ++u)
            if (!s.seen[u]) std::fill_n(s.out + u * s.dim, s.dim, 0.0f);
    });
}

// Position of the first id whose row is not of its feature's table, or -1.
inline int64_t first_of_other_table(const Bags& bags, const uint32_t* feature_tables, const uint32_t* unique_tables,
                                    const Workers& workers) {
    std::atomic<int64_t> bad{-1};
    workers.run(bags.features, 1, [&](int64_t begin, int64_t end) {
        for (int64_t f = begin; f < end; ++f) {
            const int64_t first = bags.offsets[f * bags.rows], last = bags.offsets[(f + 1) * bags.rows];
            uint32_t wrong = 0;
            for (int64_t p = first; p < last; ++p) wrong |= unique_tables[bags.query_ids[p]] ^ feature_tables[f];
            if (!wrong) continue;
            for (int64_t p = first; p < last; ++p)
                if (unique_tables[bags.query_ids[p]] != feature_tables[f]) bad = p;
        }
    });
    return bad;
}

}  // namespace headrace
