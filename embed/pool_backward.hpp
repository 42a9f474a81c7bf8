// The backward of pooling: gradients of unique rows, each a sum over the row's occurrences. All sums are float32, in
// ascending position, starting from their first term (an empty sum is 0).
#pragma once

#include <algorithm>
#include <cstdint>

#include "bag_checks.hpp"
#include "parallel.hpp"
#include "update.hpp"
#include "vector_clones.hpp"

namespace headrace {

constexpr int64_t kAheadTerms = 16;  // occurrences looked ahead
constexpr int64_t kUnevenParts = 4;  // parts a thread where features differ in their number of ids

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
        if (k + kAheadTerms < last) {
            const int64_t ahead = s.starts[s.positions[k + kAheadTerms]];
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

// How the output's gradient is read, which is read once.
struct GradientReading {
    int64_t tile;            // output rows that are worked on together
    int64_t ahead;           // bags looked ahead by the software prefetch; less than a tile
    bool past_outer_caches;  // where it would throw out what the step needs next
};

// Past the outer caches AMD's processors take 6 to 8 % less for the step, and more for larger tiles. Intel's then hold
// it in the innermost cache alone, often lose it there before it is read, and take a quarter more for the backward;
// with larger tiles a sixth less.
inline GradientReading gradient_reading() noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
    static const bool amd = __builtin_cpu_is("amd") != 0;
    if (amd) return {8, 6, true};
#endif
    return {32, 24, false};
}

// Gradients of pooled features, added into those of unique rows; `seen` [unique] begins as 0.
struct Scatter {
    const float* grad;
    int64_t stride;
    int64_t dim;
    float* out;
    uint8_t* seen;
    GradientReading reading = gradient_reading();
};

template <TermKind kind, int64_t Dim>
HEADRACE_INLINE void scatter_term(const Scatter& s, int64_t u, const float* __restrict from, float factor) noexcept {
    const int64_t n = Dim ? Dim : s.dim;
    float* __restrict to = s.out + u * n;
    if (s.seen[u])
        for (int64_t j = 0; j < n; ++j) to[j] = to[j] + term<kind>(from[j], factor);
    else
        for (int64_t j = 0; j < n; ++j) to[j] = term<kind>(from[j], factor);
    s.seen[u] = 1;
}

// `OneHot`: every bag has one id, so that the number of the bag is its position.
template <TermKind kind, int64_t Dim, bool OneHot>
HEADRACE_INLINE void scatter_bag(const Bags& bags, const Scatter& s, int64_t f, int64_t b) noexcept {
    const int64_t bag = f * bags.rows + b;
    const int64_t first = OneHot ? bag : bags.offsets[bag], last = OneHot ? bag + 1 : bags.offsets[bag + 1];
    const float* from = s.grad + b * s.stride + bags.columns[f];
    for (int64_t p = first; p < last; ++p) {
        float factor = 1.0f;
        if constexpr (kind == kWeighted) factor = bags.weights[p];
        if constexpr (kind == kDivided) factor = static_cast<float>(last - first);
        scatter_term<kind, Dim>(s, bags.query_ids[p], from, factor);
    }
}

// Asks for what bag (f, b) reads and writes.
template <int64_t Dim, bool OneHot>
HEADRACE_INLINE void prefetch_terms(const Bags& bags, const Scatter& s, int64_t f, int64_t b) noexcept {
    if (b >= bags.rows) return;
    const int64_t bag = f * bags.rows + b;
    const int64_t first = OneHot ? bag : bags.offsets[bag];
    const int64_t last = OneHot ? bag + 1 : std::min(bags.offsets[bag + 1], first + kAheadTerms);
    for (int64_t p = first; p < last; ++p) prefetch_row<1, Dim>(s.out + bags.query_ids[p] * s.dim, s.dim);
    const float* gradient = s.grad + b * s.stride + bags.columns[f];
    s.reading.past_outer_caches ? prefetch_row<0, Dim, kReadOnce>(gradient, s.dim)
                                : prefetch_row<0, Dim>(gradient, s.dim);
}

// The bags of feature f in output rows [start, stop), after which come those of feature `next` from `next_start` on.
struct BagRun {
    int64_t f;
    int64_t start;
    int64_t stop;
    int64_t next;
    int64_t next_start;
};

template <TermKind kind, int64_t Dim, bool OneHot>
HEADRACE_INLINE void scatter_run(const Bags& bags, const Scatter& s, const BagRun& run) noexcept {
    for (int64_t b = run.start; b < run.stop; ++b) {
        const int64_t over = b + s.reading.ahead - run.stop;
        if (over < 0)
            prefetch_terms<Dim, OneHot>(bags, s, run.f, b + s.reading.ahead);
        else
            prefetch_terms<Dim, OneHot>(bags, s, run.next, run.next_start + over);
        scatter_bag<kind, Dim, OneHot>(bags, s, run.f, b);
    }
}

// Features [begin, end), `tile` output rows of each in turn.
struct Features {
    const int64_t* begin;
    const int64_t* end;
    int64_t tile;
};

template <int64_t Dim, bool OneHot>
HEADRACE_INLINE void scatter_tiles(const Bags& bags, const Scatter& s, const Features& some) noexcept {
    for (int64_t start = 0; start < bags.rows; start += some.tile) {
        const int64_t stop = std::min(start + some.tile, bags.rows);
        for (const int64_t* f = some.begin; f < some.end; ++f) {
            const bool last = f + 1 == some.end;
            const BagRun run{*f, start, stop, last ? *some.begin : f[1], last ? stop : start};
            if (bags.weights)
                scatter_run<kWeighted, Dim, OneHot>(bags, s, run);
            else if (bags.mean[*f] && !OneHot)
                scatter_run<kDivided, Dim, OneHot>(bags, s, run);
            else
                scatter_run<kPlain, Dim, OneHot>(bags, s, run);
        }
    }
}

template <bool OneHot>
HEADRACE_INLINE void scatter_tiles_of(const Bags& bags, const Scatter& s, const Features& some) noexcept {
    switch (s.dim) {
        case 16:
            return scatter_tiles<16, OneHot>(bags, s, some);
        case 32:
            return scatter_tiles<32, OneHot>(bags, s, some);
        case 64:
            return scatter_tiles<64, OneHot>(bags, s, some);
        case 128:
            return scatter_tiles<128, OneHot>(bags, s, some);
        default:
            return scatter_tiles<0, OneHot>(bags, s, some);
    }
}

HEADRACE_VECTOR_CLONES
static void scatter_features(const Bags& bags, const Scatter& s, const Features& some, bool one_hot) noexcept {
    one_hot ? scatter_tiles_of<true>(bags, s, some) : scatter_tiles_of<false>(bags, s, some);
}

// Features by table: `features` lists those that are pooled, table after table, table k from starts[k] on (the tables
// with one feature first, `single` of them). No row is of two tables.
struct TableOrder {
    const int64_t* features;
    const int64_t* starts;
    int64_t tables;
    int64_t single;
};

// Tables are shared out over the workers: each row's sum is one thread's. Tables with one feature share no row, and go
// tile by tile, since the gradients of a tile lie side by side. Within a table positions ascend, since those of one
// feature do, and features of one table come one after the other.
inline void pool_backward(const Bags& bags, const Scatter& s, const TableOrder& order, int64_t unique, bool one_hot,
                          const Workers& workers) {
    // Bags of many ids: rows are added to many times, and those of one table may stay in cache.
    const int64_t tile = has_many_ids(bags) ? bags.rows : s.reading.tile;
    const int64_t parts = workers.threads * (one_hot ? 1 : kUnevenParts);  // fewer read longer runs of the gradient
    const int64_t least = std::max<int64_t>(1, order.single / parts);
    workers.run(order.single, least, [&](int64_t begin, int64_t end) {
        scatter_features(bags, s, {order.features + begin, order.features + end, tile}, one_hot);
    });
    workers.run(order.tables - order.single, 1, [&](int64_t begin, int64_t end) {
        const int64_t first = order.starts[order.single + begin], last = order.starts[order.single + end];
        scatter_features(bags, s, {order.features + first, order.features + last, bags.rows}, one_hot);
    });
    constexpr int64_t kLeastRows = 4096;
    workers.run(unique, kLeastRows, [&](int64_t begin, int64_t end) {
        for (int64_t u = begin; u < end; ++u)
            if (!s.seen[u]) std::fill_n(s.out + u * s.dim, s.dim, 0.0f);
    });
}

}  // namespace headrace
