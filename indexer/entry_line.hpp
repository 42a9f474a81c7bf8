// A cache line of four entries, looked at as a whole.
#pragma once

#include "entry.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace headrace {

// Filled from the front.
constexpr std::size_t kLine = 4;
constexpr unsigned kFullLine = 0xF;

// A bit an entry.
struct LineBits {
    unsigned occupied;
    unsigned alike;  // the low half of the hash is the one asked for

    std::size_t rows() const { return static_cast<std::size_t>(__builtin_ctz(~occupied)); }
};

inline LineBits portable_line_bits(const Entry* line, std::uint64_t hash) {
    LineBits bits{0, 0};
    for (unsigned i = 0; i < kLine; ++i) {
        bits.occupied |= static_cast<unsigned>(line[i].occupied()) << i;
        bits.alike |= static_cast<unsigned>(static_cast<std::uint32_t>(line[i].hash ^ hash) == 0) << i;
    }
    return bits;
}

// Without a branch: which entry of a line it is, and how many there are, nobody can foresee.
inline LineBits line_bits(const Entry* line, std::uint64_t hash) {
#ifdef __SSE2__
    const auto* const entries = reinterpret_cast<const __m128i*>(line);
    const __m128i a = _mm_load_si128(entries), b = _mm_load_si128(entries + 1);
    const __m128i c = _mm_load_si128(entries + 2), d = _mm_load_si128(entries + 3);
    const __m128i low_halves = _mm_unpacklo_epi64(_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
    const __m128i word_tops = _mm_unpackhi_epi64(_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
    const __m128i alike = _mm_cmpeq_epi32(low_halves, _mm_set1_epi32(static_cast<int>(hash)));
    return {static_cast<unsigned>(_mm_movemask_ps(_mm_castsi128_ps(word_tops))),
            static_cast<unsigned>(_mm_movemask_ps(_mm_castsi128_ps(alike)))};
#else
    return portable_line_bits(line, hash);
#endif
}

inline bool line_full(const Entry* line) { return line[kLine - 1].occupied(); }

// The number of the first of `alike`, or the last entry's.
inline std::size_t first_alike(unsigned alike) {
    return static_cast<std::size_t>(__builtin_ctz(alike | 1u << (kLine - 1)));
}

// The line's entry of the key, or null.
inline const Entry* line_find(const Entry* line, unsigned alike, std::uint64_t hash, std::uint64_t key) {
    for (; alike != 0; alike &= alike - 1) {
        if (line[first_alike(alike)].is(hash, key)) return line + first_alike(alike);
    }
    return nullptr;
}

}  // namespace headrace
