// One optimizer step on one row, laid out as [vector (dim) | state]; formulas in optimizers.py.
#pragma once

#include <cmath>
#include <cstdint>

namespace headrace {

enum RuleKind : int32_t { kSgd = 0, kRowwiseAdagrad = 1 };

struct Rule {
    int32_t kind;
    float lr;
    float eps;
};

inline void update_row(const Rule& rule, int64_t dim, float* __restrict row, const float* __restrict grad) noexcept {
    if (rule.kind == kSgd) {
        for (int64_t j = 0; j < dim; ++j) row[j] = row[j] - rule.lr * grad[j];
        return;
    }
    float squares = 0.0f;
    for (int64_t j = 0; j < dim; ++j) squares = squares + grad[j] * grad[j];
    const float sum = row[dim] + squares / static_cast<float>(dim);
    row[dim] = sum;
    const float scale = std::sqrt(sum) + rule.eps;
    for (int64_t j = 0; j < dim; ++j) row[j] = row[j] - rule.lr * grad[j] / scale;
}

// Rows of an arena by slot; grads [n, dim] in the order of the slots.
inline void update_slots(const Rule& rule, int64_t dim, float* arena, int64_t width, const int64_t* slots, int64_t n,
                         const float* grads) noexcept {
    for (int64_t i = 0; i < n; ++i) {
        if (i + 8 < n) __builtin_prefetch(arena + slots[i + 8] * width, 1);
        update_row(rule, dim, arena + slots[i] * width, grads + i * dim);
    }
}

}  // namespace headrace
