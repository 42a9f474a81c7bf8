// Which of a lot of rows are of a kind: bytes of 0 and 1, gathered into the bits of a word.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace headrace::plan {

// Rows are told apart by loops over bytes, of which compilers take several at once, and those of a kind are then
// visited by the set bits of one word: what most rows are not costs nothing, and branches are few.
struct LotFlags {
    static constexpr size_t LOT = 64;

    alignas(16) uint8_t flag[LOT] = {};

    uint64_t bits() const {
        uint64_t all = 0;
#if defined(__SSE2__)
        for (size_t i = 0; i < LOT; i += 16) {
            const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(flag + i));
            all |= uint64_t{static_cast<unsigned>(_mm_movemask_epi8(_mm_slli_epi16(bytes, 7)))} << i;
        }
#else
        for (size_t i = 0; i < LOT; ++i) all |= uint64_t{flag[i]} << i;
#endif
        return all;
    }
};

template <class Visit>
void each_bit(uint64_t bits, const Visit& visit) {
    for (; bits != 0; bits &= bits - 1) visit(static_cast<uint32_t>(__builtin_ctzll(bits)));
}

}  // namespace headrace::plan
