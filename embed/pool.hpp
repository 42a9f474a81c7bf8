// Pooling of bags and the segment sum that is its backward; all sums are float32, in ascending position, starting
// from their first term (an empty sum is 0).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

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

inline void pool_bag(const Bags& bags, int64_t bag, bool mean, const float* __restrict rows, int64_t dim,
                     float* __restrict out) noexcept {
    const int64_t first = bags.offsets[bag], last = bags.offsets[bag + 1];
    if (first == last) {
        for (int64_t j = 0; j < dim; ++j) out[j] = 0.0f;
        return;
    }
    for (int64_t p = first; p < last; ++p) {
        const float* row = rows + bags.query_ids[p] * dim;
        const float weight = bags.weights ? bags.weights[p] : 1.0f;
        if (p == first)
            for (int64_t j = 0; j < dim; ++j) out[j] = row[j] * weight;
        else
            for (int64_t j = 0; j < dim; ++j) out[j] = out[j] + row[j] * weight;
    }
    if (mean && last - first > 1) {
        const float count = static_cast<float>(last - first);
        for (int64_t j = 0; j < dim; ++j) out[j] = out[j] / count;
    }
}

// rows [U, dim] -> out [B, stride]; tiles of 64 output rows, so that they stay in cache over the features.
inline void pool_forward(const Bags& bags, const float* rows, int64_t dim, float* out, int64_t stride,
                         bool one_hot) noexcept {
    constexpr int64_t kTile = 64;
    for (int64_t start = 0; start < bags.rows; start += kTile) {
        const int64_t stop = std::min(start + kTile, bags.rows);
        for (int64_t f = 0; f < bags.features; ++f) {
            if (bags.columns[f] < 0) continue;
            for (int64_t b = start; b < stop; ++b) {
                const int64_t bag = f * bags.rows + b;
                float* to = out + b * stride + bags.columns[f];
                if (one_hot)
                    std::memcpy(to, rows + bags.query_ids[bag] * dim, static_cast<size_t>(dim) * sizeof(float));
                else
                    pool_bag(bags, bag, bags.mean[f] != 0, rows, dim, to);
            }
        }
    }
}

// For each position: where its bag's gradient starts in [B, stride] (-1: not pooled), and by what it is divided.
inline void bag_terms(const Bags& bags, int64_t stride, int64_t* starts, float* divisors) noexcept {
    for (int64_t f = 0; f < bags.features; ++f)
        for (int64_t b = 0; b < bags.rows; ++b) {
            const int64_t bag = f * bags.rows + b;
            const int64_t start = bags.columns[f] < 0 ? -1 : b * stride + bags.columns[f];
            const int64_t count = bags.offsets[bag + 1] - bags.offsets[bag];
            for (int64_t p = bags.offsets[bag]; p < bags.offsets[bag + 1]; ++p) {
                starts[p] = start;
                if (divisors) divisors[p] = bags.mean[f] ? static_cast<float>(count) : 1.0f;
            }
        }
}

enum TermKind { kPlain, kWeighted, kDivided };

template <TermKind kind>
inline float term(float gradient, float factor) noexcept {
    if constexpr (kind == kWeighted) return gradient * factor;
    if constexpr (kind == kDivided) return gradient / factor;
    return gradient;
}

// out[u] = sum over the positions p of row u, ascending, of term(grad[starts[p] : + dim], factors[p]).
template <TermKind kind>
inline void segment_sum(const float* grad, const int64_t* starts, const float* factors, const int64_t* positions,
                        const int64_t* position_offsets, int64_t unique, int64_t dim, float* out) noexcept {
    for (int64_t u = 0; u < unique; ++u) {
        float* __restrict to = out + u * dim;
        bool empty = true;
        for (int64_t k = position_offsets[u]; k < position_offsets[u + 1]; ++k) {
            const int64_t p = positions[k];
            if (starts[p] < 0) continue;
            const float* __restrict from = grad + starts[p];
            const float factor = kind == kPlain ? 1.0f : factors[p];
            if (empty)
                for (int64_t j = 0; j < dim; ++j) to[j] = term<kind>(from[j], factor);
            else
                for (int64_t j = 0; j < dim; ++j) to[j] = to[j] + term<kind>(from[j], factor);
            empty = false;
        }
        if (empty)
            for (int64_t j = 0; j < dim; ++j) to[j] = 0.0f;
    }
}

}  // namespace headrace
