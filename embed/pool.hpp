// Pooling of bags and the segment sum that is its backward; all sums are float32, in ascending position, starting
// from their first term (an empty sum is 0).
#pragma once

#include <algorithm>
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

constexpr int64_t kLargestLocal = 128;     // floats of a sum that is built beside the output
constexpr int64_t kTile = 64;              // output rows that stay in cache over the features
constexpr int64_t kAheadIds = 16;          // ids looked ahead by the software prefetch
constexpr int64_t kStreamBytes = 1 << 21;  // an output larger than this is written past the cache

// Loops over columns with a length that the compiler knows, for the usual dims; `Dim` 0 is any.
template <int64_t Dim, bool first>
inline void add_weighted(const float* __restrict row, float weight, int64_t dim, float* __restrict out) noexcept {
    const int64_t n = Dim ? Dim : dim;
    for (int64_t j = 0; j < n; ++j) out[j] = first ? row[j] * weight : out[j] + row[j] * weight;
}

template <int64_t Dim>
inline void pool_bag(const Bags& bags, int64_t bag, bool mean, const float* const* rows, int64_t dim,
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

// Copies a row; past the cache where the target is aligned and `stream` asks for it.
inline void copy_row(const float* from, int64_t dim, bool stream, float* to) noexcept {
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
    bool fits = bags.rows * stride * static_cast<int64_t>(sizeof(float)) > kStreamBytes && dim % 4 == 0 &&
                stride % 4 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
    for (int64_t f = 0; f < bags.features; ++f) fits = fits && (bags.columns[f] < 0 || bags.columns[f] % 4 == 0);
    return fits;
}

inline void prefetch_bag(const Bags& bags, int64_t bag, const float* const* rows, int64_t dim) noexcept {
    const int64_t first = bags.offsets[bag], last = std::min(bags.offsets[bag + 1], first + kAheadIds);
    for (int64_t p = first; p < last; ++p) prefetch_row<0>(rows[bags.query_ids[p]], dim);
}

template <int64_t Dim>
inline void pool_tile(const Bags& bags, const float* const* rows, int64_t dim, float* out, int64_t stride, bool one_hot,
                      bool stream, int64_t start, int64_t stop) noexcept {
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
                if (ahead < bag_count) prefetch_row<0>(rows[bags.query_ids[ahead]], dim);
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

// For each position: where its bag's gradient starts in [B, stride] (-1: not pooled), and by what it is divided.
inline void bag_terms(const Bags& bags, int64_t stride, int64_t* starts, float* divisors, const Workers& workers) {
    workers.run(bags.features, 1, [&](int64_t begin, int64_t end) {
        for (int64_t f = begin; f < end; ++f)
            for (int64_t b = 0; b < bags.rows; ++b) {
                const int64_t bag = f * bags.rows + b;
                const int64_t start = bags.columns[f] < 0 ? -1 : b * stride + bags.columns[f];
                const int64_t count = bags.offsets[bag + 1] - bags.offsets[bag];
                for (int64_t p = bags.offsets[bag]; p < bags.offsets[bag + 1]; ++p) {
                    starts[p] = start;
                    if (divisors) divisors[p] = bags.mean[f] ? static_cast<float>(count) : 1.0f;
                }
            }
    });
}

enum TermKind { kPlain, kWeighted, kDivided };

template <TermKind kind>
inline float term(float gradient, float factor) noexcept {
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
inline void sum_segment(const Segments& s, int64_t u, int64_t last, float* __restrict to) noexcept {
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
inline void sum_segments(const Segments& s, int64_t begin, int64_t end, float* out) noexcept {
    const int64_t last = s.position_offsets[end];
    for (int64_t u = begin; u < end; ++u) sum_segment<kind, Dim>(s, u, last, out + u * s.dim);
}

template <TermKind kind>
inline void sum_segments_of(const Segments& s, int64_t begin, int64_t end, float* out) noexcept {
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

}  // namespace headrace
