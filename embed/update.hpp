// One optimizer step on one row, laid out as [vector (dim) | state]; formulas in optimizers.py.
#pragma once

#include <cmath>
#include <cstdint>

#include "vector_clones.hpp"

namespace headrace {

enum RuleKind : int32_t { kSgd = 0, kRowwiseAdagrad = 1, kAdagrad = 2, kAdam = 3 };

// `lr` is the step size; with Adam the bias corrections are in it. `keep1` and `keep2` are 1 - beta1 and 1 - beta2.
struct Rule {
    int32_t kind;
    float lr;
    float eps;
    float weight_decay;
    float keep1;
    float keep2;
};

// Floats of state behind a vector of `dim` floats.
inline int64_t state_floats(int32_t kind, int64_t dim) noexcept {
    switch (kind) {
        case kRowwiseAdagrad:
            return 1;
        case kAdagrad:
            return dim;
        case kAdam:
            return 2 * dim;
        default:
            return 0;
    }
}

template <bool decays>
HEADRACE_INLINE float decayed(const Rule& rule, float gradient, float value) noexcept {
    if constexpr (decays) return gradient + rule.weight_decay * value;
    return gradient;
}

template <bool decays>
HEADRACE_INLINE void sgd_row(const Rule& rule, int64_t dim, float* __restrict row,
                             const float* __restrict grad) noexcept {
    for (int64_t j = 0; j < dim; ++j) row[j] = row[j] - rule.lr * decayed<decays>(rule, grad[j], row[j]);
}

// Column j is added up in lane j % 16, and the lanes in halves: one order on every machine, and the columns of a cache
// line at once. (One chain from left to right, and a division a column, took 0.3 ms more of a step at dim 64.)
template <bool decays>
HEADRACE_INLINE float sum_of_squares(const Rule& rule, int64_t dim, const float* row, const float* grad) noexcept {
    constexpr int64_t kLanes = 16;
    float lanes[kLanes] = {};
    const auto add = [&](int64_t j, int64_t lane) __attribute__((always_inline)) {
        const float g = decayed<decays>(rule, grad[j], row[j]);
        lanes[lane] = lanes[lane] + g * g;
    };
    const int64_t whole = dim / kLanes * kLanes;
    for (int64_t from = 0; from < whole; from += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) add(from + lane, lane);
    for (int64_t j = whole; j < dim; ++j) add(j, j - whole);
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) lanes[lane] = lanes[lane] + lanes[lane + half];
    return lanes[0];
}

template <bool decays>
HEADRACE_INLINE void rowwise_adagrad_row(const Rule& rule, int64_t dim, float* __restrict row,
                                         const float* __restrict grad) noexcept {
    const float sum = row[dim] + sum_of_squares<decays>(rule, dim, row, grad) / static_cast<float>(dim);
    const float rate = rule.lr / (std::sqrt(sum) + rule.eps);
    row[dim] = sum;
    for (int64_t j = 0; j < dim; ++j) row[j] = row[j] - rate * decayed<decays>(rule, grad[j], row[j]);
}

template <bool decays>
HEADRACE_INLINE void adagrad_row(const Rule& rule, int64_t dim, float* __restrict row,
                                 const float* __restrict grad) noexcept {
    float* sums = row + dim;
    for (int64_t j = 0; j < dim; ++j) {
        const float g = decayed<decays>(rule, grad[j], row[j]);
        sums[j] = sums[j] + g * g;
        row[j] = row[j] - rule.lr * g / (std::sqrt(sums[j]) + rule.eps);
    }
}

template <bool decays>
HEADRACE_INLINE void adam_row(const Rule& rule, int64_t dim, float* __restrict row,
                              const float* __restrict grad) noexcept {
    float* first = row + dim;
    float* second = row + 2 * dim;
    for (int64_t j = 0; j < dim; ++j) {
        const float g = decayed<decays>(rule, grad[j], row[j]);
        first[j] = first[j] + rule.keep1 * (g - first[j]);
        second[j] = second[j] + rule.keep2 * (g * g - second[j]);
        row[j] = row[j] - rule.lr * (first[j] / (std::sqrt(second[j]) + rule.eps));
    }
}

template <bool decays>
HEADRACE_INLINE void step_rows(const Rule& rule, int64_t dim, float* const* rows, const float* const* grads,
                               int64_t n) noexcept {
    switch (rule.kind) {
        case kSgd:
            for (int64_t i = 0; i < n; ++i) sgd_row<decays>(rule, dim, rows[i], grads[i]);
            break;
        case kRowwiseAdagrad:
            for (int64_t i = 0; i < n; ++i) rowwise_adagrad_row<decays>(rule, dim, rows[i], grads[i]);
            break;
        case kAdagrad:
            for (int64_t i = 0; i < n; ++i) adagrad_row<decays>(rule, dim, rows[i], grads[i]);
            break;
        default:
            for (int64_t i = 0; i < n; ++i) adam_row<decays>(rule, dim, rows[i], grads[i]);
    }
}

constexpr int64_t kSideBySide = 8;  // rows whose memory is asked for while as many are worked on

// Up to kSideBySide rows that are not the same; grads[i] is the gradient of rows[i].
HEADRACE_VECTOR_CLONES
static void update_rows(const Rule& rule, int64_t dim, float* const* rows, const float* const* grads,
                        int64_t n) noexcept {
    if (rule.weight_decay != 0.0f)
        step_rows<true>(rule, dim, rows, grads, n);
    else
        step_rows<false>(rule, dim, rows, grads, n);
}

// How long what is asked for is to stay: in all caches, or only as near as it is used, past those behind (what is read
// once takes no room there).
constexpr int kStays = 3, kReadOnce = 0;

// Asks for the lines of a row's first 512 bytes; `write` is 1 where it will be written.
template <int write, int64_t Dim = 0, int stay = kStays>
HEADRACE_INLINE void prefetch_row(const float* row, int64_t floats) noexcept {
    if constexpr (Dim > 0) floats = Dim;
    const int64_t bytes = floats < 128 ? floats * static_cast<int64_t>(sizeof(float)) : 512;
    const char* first = reinterpret_cast<const char*>(row);
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(first + at, write, stay);
    if (reinterpret_cast<uintptr_t>(first) % 64 != 0) __builtin_prefetch(first + bytes - 1, write, stay);
}

// row(i) is where the i-th of n different rows of `width` floats is; grads [n, dim].
template <class Row>
inline void update_many(const Rule& rule, int64_t dim, int64_t width, int64_t n, const float* grads,
                        const Row& row) noexcept {
    float* rows[kSideBySide];
    const float* gradients[kSideBySide];
    for (int64_t first = 0; first < n; first += kSideBySide) {
        const int64_t count = n - first < kSideBySide ? n - first : kSideBySide;
        for (int64_t i = 0; i < count; ++i) {
            rows[i] = row(first + i);
            gradients[i] = grads + (first + i) * dim;
            if (first + i + kSideBySide < n) prefetch_row<1>(row(first + i + kSideBySide), width);
        }
        update_rows(rule, dim, rows, gradients, count);
    }
}

}  // namespace headrace
