// Pooling of bags; all sums are float32, in ascending position, starting from their first term (an empty sum is 0).
#pragma once

#include <algorithm>
#include <cstdint>

#include "bag_checks.hpp"
#include "parallel.hpp"
#include "stream_rows.hpp"
#include "update.hpp"
#include "vector_clones.hpp"

namespace headrace {

constexpr int64_t kLine = 16;              // floats of a cache line
constexpr int64_t kLargestLocal = 128;     // floats of a sum that is built beside the output, or of a part of one
constexpr int64_t kTile = 64;              // output rows that stay in cache over the features
constexpr int64_t kFeatureTile = 512;      // output rows of one feature that are one thread's
constexpr int64_t kAheadIds = 16;          // ids looked ahead by the software prefetch
constexpr int64_t kStreamBytes = 1 << 21;  // an output larger than this is written past the cache

// Columns [from, from + columns) of a bag with ids; their sums are in registers, or near. `Columns` is their number
// where the compiler may know it, else 0; at most kLargestLocal.
template <int64_t Columns>
HEADRACE_INLINE void pool_columns(const Bags& bags, int64_t first, int64_t last, const float* const* rows, int64_t from,
                                  int64_t columns, float* __restrict out) noexcept {
    const int64_t n = Columns ? Columns : columns;
    const float* const weights = bags.weights;
    const int64_t* const ids = bags.query_ids;
    float sum[Columns ? Columns : kLargestLocal];
    const float* row = rows[ids[first]] + from;
    float weight = weights ? weights[first] : 1.0f;
    for (int64_t j = 0; j < n; ++j) sum[j] = row[j] * weight;
    for (int64_t p = first + 1; p < last; ++p) {
        HEADRACE_ONE_BY_ONE
        row = rows[ids[p]] + from;
        weight = weights ? weights[p] : 1.0f;
        for (int64_t j = 0; j < n; ++j) sum[j] = sum[j] + row[j] * weight;
    }
    for (int64_t j = 0; j < n; ++j) out[j] = sum[j];
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
    constexpr int64_t kBlock = Dim <= kLargestLocal ? Dim : 0;
    for (int64_t from = 0; from < n; from += kLargestLocal)
        pool_columns<kBlock>(bags, first, last, rows, from, std::min(kLargestLocal, n - from), out + from);
    if (mean && last - first > 1) {
        const float count = static_cast<float>(last - first);
        for (int64_t j = 0; j < n; ++j) out[j] = out[j] / count;
    }
}

inline bool can_stream(const Bags& bags, int64_t dim, const float* out, int64_t stride) noexcept {
    bool fits = kStreams && bags.rows * stride * static_cast<int64_t>(sizeof(float)) > kStreamBytes &&
                dim % kLine == 0 && stride % kLine == 0 && reinterpret_cast<uintptr_t>(out) % 64 == 0;
    for (int64_t f = 0; f < bags.features; ++f) fits = fits && (bags.columns[f] < 0 || bags.columns[f] % kLine == 0);
    return fits;
}

HEADRACE_INLINE void prefetch_bag(const Bags& bags, int64_t bag, const float* const* rows, int64_t dim) noexcept {
    const int64_t first = bags.offsets[bag], last = std::min(bags.offsets[bag + 1], first + kAheadIds);
    for (int64_t p = first; p < last; ++p) prefetch_row<0>(rows[bags.query_ids[p]], dim);
}

template <int64_t Dim>
HEADRACE_INLINE void pool_feature(const Bags& bags, int64_t f, const float* const* rows, int64_t dim, float* out,
                                  int64_t stride, bool stream, int64_t start, int64_t stop) noexcept {
    const int64_t bag_count = bags.rows * bags.features;
    for (int64_t b = start; b < stop; ++b) {
        const int64_t bag = f * bags.rows + b;
        float* to = out + b * stride + bags.columns[f];
        if (bag + 2 < bag_count) prefetch_bag(bags, bag + 2, rows, dim);
        if (stream && dim <= kLargestLocal) {
            alignas(64) float sum[kLargestLocal];
            pool_bag<Dim>(bags, bag, bags.mean[f] != 0, rows, dim, sum);
            stream_row(sum, dim, to);
        } else {
            pool_bag<Dim>(bags, bag, bags.mean[f] != 0, rows, dim, to);
        }
    }
}

// Output rows [start, stop) of features [first, last).
struct PoolPart {
    int64_t first;
    int64_t last;
    int64_t start;
    int64_t stop;
};

template <int64_t Dim>
HEADRACE_INLINE void pool_features(const Bags& bags, const float* const* rows, int64_t dim, float* out, int64_t stride,
                                   bool stream, const PoolPart& part) noexcept {
    for (int64_t f = part.first; f < part.last; ++f)
        if (bags.columns[f] >= 0) pool_feature<Dim>(bags, f, rows, dim, out, stride, stream, part.start, part.stop);
}

HEADRACE_VECTOR_CLONES
static void pool_part(const Bags& bags, const float* const* rows, int64_t dim, float* out, int64_t stride, bool stream,
                      const PoolPart& part) noexcept {
    switch (dim) {
        case 16:
            return pool_features<16>(bags, rows, dim, out, stride, stream, part);
        case 32:
            return pool_features<32>(bags, rows, dim, out, stride, stream, part);
        case 64:
            return pool_features<64>(bags, rows, dim, out, stride, stream, part);
        case 128:
            return pool_features<128>(bags, rows, dim, out, stride, stream, part);
        default:
            return pool_features<0>(bags, rows, dim, out, stride, stream, part);
    }
}

// One id a bag: output rows [start, stop) are copies.
inline void copy_features(const Bags& bags, const float* const* rows, int64_t dim, float* out, int64_t stride,
                          bool stream, int64_t start, int64_t stop) noexcept {
    for (int64_t f = 0; f < bags.features; ++f) {
        if (bags.columns[f] < 0) continue;
        const int64_t* ids = bags.query_ids + f * bags.rows + start;
        const bool last = f + 1 == bags.features;
        const Copies copies{rows,
                            ids,
                            stop - start,
                            last ? bags.query_ids + stop : ids + bags.rows,  // the next tile, or the next feature
                            last ? std::min(stop - start, bags.rows - stop) : stop - start,
                            dim,
                            out + start * stride + bags.columns[f],
                            stride};
        stream ? stream_rows(copies) : copy_rows_cached(copies);
    }
}

// Unique row u, at rows[u] -> out [B, stride]; parts of the output are shared out over the workers.
//
// Where bags have many ids each row is read many times, so that feature after feature is pooled: the rows of one table
// may stay in cache, those of all do not. Else a tile of output rows is filled feature after feature.
inline void pool_forward(const Bags& bags, const float* const* rows, int64_t dim, float* out, int64_t stride,
                         bool one_hot, const Workers& workers) {
    const bool stream = can_stream(bags, dim, out, stride);
    const bool by_feature = has_many_ids(bags);
    const int64_t tile_rows = by_feature ? kFeatureTile : kTile;
    const int64_t tiles = (bags.rows + tile_rows - 1) / tile_rows;
    workers.run(by_feature ? tiles * bags.features : tiles, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t start = i % tiles * tile_rows, stop = std::min(start + tile_rows, bags.rows);
            if (one_hot) {
                copy_features(bags, rows, dim, out, stride, stream, start, stop);
            } else {
                const int64_t f = i / tiles;
                pool_part(bags, rows, dim, out, stride, stream, {f, by_feature ? f + 1 : bags.features, start, stop});
            }
        }
        if (stream) end_stream();
    });
}

}  // namespace headrace
