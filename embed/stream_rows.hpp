// Copies of rows to places that will not be read soon, past the cache.
//
// A cache line that is written by one or two stores leaves the processor as a whole; by four of 16 bytes it takes half
// as long again. The widest stores that the machine has are picked once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "update.hpp"
#include "vector_clones.hpp"

namespace headrace {

constexpr int64_t kAheadCopies = 16;  // rows looked ahead by the software prefetch

// Row ids[i] of `rows`, `dim` floats -> to + i * stride, for i < n. Beyond the last, `next` [next_n] are asked for.
struct Copies {
    const float* const* rows;
    const int64_t* ids;
    int64_t n;
    const int64_t* next;
    int64_t next_n;
    int64_t dim;
    float* to;
    int64_t stride;

    template <int64_t Dim>
    HEADRACE_INLINE void prefetch(int64_t i) const noexcept {
        const int64_t ahead = i + kAheadCopies;
        if (ahead < n)
            prefetch_row<0, Dim>(rows[ids[ahead]], dim);
        else if (ahead - n < next_n)
            prefetch_row<0, Dim>(rows[next[ahead - n]], dim);
    }
};

inline void copy_rows_cached(const Copies& c) noexcept {
    for (int64_t i = 0; i < c.n; ++i) {
        c.prefetch<0>(i);
        std::memcpy(c.to + i * c.stride, c.rows[c.ids[i]], static_cast<size_t>(c.dim) * sizeof(float));
    }
}

// The functions that stream need a `dim` of whole cache lines, and a `to` that begins with one.
#if defined(__x86_64__) && defined(__GNUC__)
constexpr bool kStreams = true;

// `Dim` 0 is any.
#define HEADRACE_STREAM_ROWS(name, isa, lanes, load, store)                         \
    template <int64_t Dim>                                                          \
    __attribute__((target(isa))) static void name(const Copies& c) noexcept {       \
        const int64_t dim = Dim ? Dim : c.dim;                                      \
        for (int64_t i = 0; i < c.n; ++i) {                                         \
            c.prefetch<Dim>(i);                                                     \
            const float* from = c.rows[c.ids[i]];                                   \
            float* to = c.to + i * c.stride;                                        \
            for (int64_t j = 0; j < dim; j += lanes) store(to + j, load(from + j)); \
        }                                                                           \
    }
HEADRACE_STREAM_ROWS(stream_16_bytes, "sse2", 4, _mm_loadu_ps, _mm_stream_ps)
HEADRACE_STREAM_ROWS(stream_32_bytes, "avx", 8, _mm256_loadu_ps, _mm256_stream_ps)
HEADRACE_STREAM_ROWS(stream_64_bytes, "avx512f", 16, _mm512_loadu_ps, _mm512_stream_ps)
#undef HEADRACE_STREAM_ROWS

inline int widest_store() noexcept {
    static const int bytes = __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx") ? 32 : 16;
    return bytes;
}

template <int64_t Dim>
inline void stream_rows_of(const Copies& copies) noexcept {
    switch (widest_store()) {
        case 64:
            return stream_64_bytes<Dim>(copies);
        case 32:
            return stream_32_bytes<Dim>(copies);
        default:
            return stream_16_bytes<Dim>(copies);
    }
}

inline void stream_rows(const Copies& copies) noexcept {
    switch (copies.dim) {
        case 16:
            return stream_rows_of<16>(copies);
        case 32:
            return stream_rows_of<32>(copies);
        case 64:
            return stream_rows_of<64>(copies);
        case 128:
            return stream_rows_of<128>(copies);
        default:
            return stream_rows_of<0>(copies);
    }
}

HEADRACE_INLINE void stream_row(const float* from, int64_t dim, float* to) noexcept {
    for (int64_t j = 0; j < dim; j += 4) _mm_stream_ps(to + j, _mm_loadu_ps(from + j));
}

// To be called by each thread that streamed, before others may read what it wrote.
inline void end_stream() noexcept { _mm_sfence(); }
#else
constexpr bool kStreams = false;

inline void stream_rows(const Copies& copies) noexcept { copy_rows_cached(copies); }
inline void stream_row(const float* from, int64_t dim, float* to) noexcept { std::copy_n(from, dim, to); }
inline void end_stream() noexcept {}
#endif

}  // namespace headrace
