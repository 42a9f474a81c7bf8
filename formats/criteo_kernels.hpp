// The inner loops of the parser of lines: where separators are, and a column of up to 64 fields at a time.
//
// They are written for AVX2, and chosen when the program runs (`best_kernels`). Without it every line is parsed by
// itself: the same loops in plain C++ took longer than that. No loop decides what a value is: what is not of the common
// form comes back in a mask, for the parser of single fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define HEADRACE_X86 1
#include <immintrin.h>
#else
#define HEADRACE_X86 0
#endif

namespace headrace::formats {

constexpr int kTileRows = 64;
// Positions in a tile are 16-bit numbers.
constexpr std::size_t kTileBytes = 1023 * 64;

// Separators (tabs and line feeds) in order, and how many of them are line feeds.
struct Separators {
    std::size_t count, feeds;
};

// Rows [0, rows) of one column: row i is [starts[i], ends[i]) behind `text`, with eight readable bytes from starts[i].
// Both arrays have `kTileRows` entries, whatever `rows` is.
struct Fields {
    const std::uint8_t* text;
    const std::uint16_t* starts;
    const std::uint16_t* ends;
    int rows;
};

// By bits: rows whose field is empty, and rows that are for the parser of single fields; the other rows are stored.
struct Found {
    std::uint64_t missing, unusual;
};

struct Kernels {
    // Positions of the separators in [text, text + size), at most kTileBytes, until there are `want` or more; `out` has
    // room for want + 64.
    Separators (*find)(const std::uint8_t* text, std::size_t size, std::size_t want, std::uint16_t* out);
    // Eight hexadecimal digits, or nothing.
    Found (*hex32)(const Fields& fields, std::uint32_t* out);
    // Up to eight decimal digits.
    Found (*decimal)(const Fields& fields, std::uint64_t* out);
};

namespace detail {

using Byte = std::uint8_t;

constexpr std::uint64_t repeat(Byte b) { return 0x0101010101010101ULL * b; }

// Eight bytes, the first one lowest, whatever the machine's byte order.
inline std::uint64_t load8(const Byte* p) {
    std::uint64_t word;
    std::memcpy(&word, p, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

// True when the eight bytes of `word` are all hexadecimal digits; `value` is then their number.
// Each byte x < 0x80 is compared by additions that set bit 7: x + 0x50 iff x >= '0', x + 0x46 iff x > '9', and for
// y = x | 0x20: y + 0x1f iff y >= 'a', y + 0x19 iff y > 'f'. A byte >= 0x80 may carry into its neighbours: refused
// first.
inline bool hex8(std::uint64_t word, std::uint32_t& value) {
    const std::uint64_t high = repeat(0x80);
    const std::uint64_t folded = word | repeat(0x20);
    const std::uint64_t digit = (word + repeat(0x50)) & ~(word + repeat(0x46)) & high;
    const std::uint64_t letter = (folded + repeat(0x1f)) & ~(folded + repeat(0x19)) & high;
    if ((word & high) != 0 || (digit | letter) != high) return false;
    std::uint64_t n = (word & repeat(0x0f)) + (letter >> 7) * 9;
    n = ((n << 4) | (n >> 8)) & 0x00FF00FF00FF00FFULL;
    n = ((n << 8) | (n >> 16)) & 0x0000FFFF0000FFFFULL;
    value = static_cast<std::uint32_t>((n << 16) | (n >> 32));
    return true;
}

// Number of `digits`, 1 to 8, decimal digits in the low bytes of t, which are 0..9 each; what is above them is ignored.
inline std::uint64_t decimal8(std::uint64_t t, int digits) {
    t <<= 8 * (8 - digits);
    t = (t * 10 + (t >> 8)) & 0x00FF00FF00FF00FFULL;
    t = (t * 100 + (t >> 16)) & 0x0000FFFF0000FFFFULL;
    return (t * 10000 + (t >> 32)) & 0xFFFFFFFFULL;
}

// Rows from `first` on, each a bit of the result.
inline Found hex32_from(const Fields& f, int first, std::uint32_t* out) {
    Found found{0, 0};
    for (int i = first; i < f.rows; ++i) {
        const std::uint64_t bit = std::uint64_t{1} << i;
        const int length = f.ends[i] - f.starts[i];
        std::uint32_t value = 0;
        if (length == 0) {
            found.missing |= bit;
        } else if (length != 8 || !hex8(load8(f.text + f.starts[i]), value)) {
            found.unusual |= bit;
        }
        out[i] = value;
    }
    return found;
}

inline Found decimal_from(const Fields& f, int first, std::uint64_t* out) {
    Found found{0, 0};
    for (int i = first; i < f.rows; ++i) {
        const std::uint64_t bit = std::uint64_t{1} << i;
        const int length = f.ends[i] - f.starts[i];
        std::uint64_t value = 0;
        if (length == 0) {
            found.missing |= bit;
        } else if (length > 8) {
            found.unusual |= bit;
        } else {
            const std::uint64_t t = load8(f.text + f.starts[i]) ^ repeat('0');
            // Bit 7 of a byte that is no digit; a carry can only spoil bytes above the first of them.
            const std::uint64_t other = ((t + repeat(0x76)) | t) & repeat(0x80);
            if ((other << (8 * (8 - length))) != 0) {
                found.unusual |= bit;
            } else {
                value = decimal8(t, length);
            }
        }
        out[i] = value;
    }
    return found;
}

#if HEADRACE_X86

#define HEADRACE_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))

HEADRACE_AVX2 inline std::uint64_t mask32(__m256i v) { return static_cast<std::uint32_t>(_mm256_movemask_epi8(v)); }

HEADRACE_AVX2 inline Separators find_avx2(const Byte* text, std::size_t size, std::size_t want, std::uint16_t* out) {
    const __m256i tab = _mm256_set1_epi8('\t'), feed = _mm256_set1_epi8('\n');
    Separators found{0, 0};
    alignas(32) Byte last[64];
    for (std::size_t at = 0; at < size && found.count < want; at += 64) {
        const Byte* p = text + at;
        if (size - at < 64) {
            std::memset(last, 0, sizeof last);
            std::memcpy(last, p, size - at);
            p = last;
        }
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
        const __m256i fa = _mm256_cmpeq_epi8(a, feed), fb = _mm256_cmpeq_epi8(b, feed);
        found.feeds += static_cast<std::size_t>(__builtin_popcountll(mask32(fa) | mask32(fb) << 32));
        std::uint64_t both = mask32(_mm256_or_si256(fa, _mm256_cmpeq_epi8(a, tab))) |
                             mask32(_mm256_or_si256(fb, _mm256_cmpeq_epi8(b, tab))) << 32;
        const int count = __builtin_popcountll(both);
        std::uint16_t* to = out + found.count;
        // Eight at a time, whether they are there or not: what is too much is overwritten. (tzcnt of 0 is 64.)
        int written = 0;
        do {
            for (int i = 0; i < 8; ++i) {
                to[written + i] = static_cast<std::uint16_t>(at + _tzcnt_u64(both));
                both = _blsr_u64(both);
            }
            written += 8;
        } while (written < count);
        found.count += static_cast<std::size_t>(count);
    }
    return found;
}

// The fields of four rows side by side, eight bytes each.
HEADRACE_AVX2 inline __m256i load_four(const Byte* text, const std::uint16_t* starts) {
    const auto word = [&](int i) { return reinterpret_cast<const __m128i*>(text + starts[i]); };
    const auto half = [&](int i) { return reinterpret_cast<const double*>(text + starts[i]); };
    const __m128d low = _mm_loadh_pd(_mm_castsi128_pd(_mm_loadl_epi64(word(0))), half(1));
    const __m128d high = _mm_loadh_pd(_mm_castsi128_pd(_mm_loadl_epi64(word(2))), half(3));
    return _mm256_castpd_si256(_mm256_insertf128_pd(_mm256_castpd128_pd256(low), high, 1));
}

// Four 16-bit numbers as 64-bit ones; 0xFFFF becomes all ones.
HEADRACE_AVX2 inline __m256i widen_four(const std::uint16_t* p) {
    return _mm256_cvtepi16_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// Bit i: the eight bytes of part i are all ones.
HEADRACE_AVX2 inline std::uint64_t whole_parts(__m256i v) {
    const __m256i whole = _mm256_cmpeq_epi64(v, _mm256_set1_epi8(-1));
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(whole)));
}

// Bit i: word i of the sixteen is all ones.
HEADRACE_AVX2 inline std::uint64_t whole_words(__m256i v) {
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return static_cast<unsigned>(_mm_movemask_epi8(bytes));
}

HEADRACE_AVX2 inline __m256i lengths16(const Fields& f, int first) {
    const __m256i ends = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f.ends + first));
    return _mm256_sub_epi16(ends, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f.starts + first)));
}

inline std::uint64_t first_bits(int count) { return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1; }

HEADRACE_AVX2 inline Found hex32_avx2(const Fields& f, std::uint32_t* out) {
    const __m256i nine = _mm256_set1_epi8(9), five = _mm256_set1_epi8(5), ten = _mm256_set1_epi8(10);
    const __m256i zero = _mm256_set1_epi8('0'), lower = _mm256_set1_epi8(0x20), letter_a = _mm256_set1_epi8('a');
    const __m256i pairs = _mm256_set1_epi16(0x0110);  // first digit times 16, second times 1
    const __m256i order = _mm256_setr_epi8(6, 4, 2, 0, 14, 12, 10, 8, -1, -1, -1, -1, -1, -1, -1, -1, 6, 4, 2, 0, 14,
                                           12, 10, 8, -1, -1, -1, -1, -1, -1, -1, -1);
    const int whole = f.rows & ~3;
    std::uint64_t missing = 0, present = 0, good = 0;
    alignas(32) std::uint16_t is_present[16];
    for (int first = 0; first < whole; first += 16) {
        const __m256i lengths = lengths16(f, first);
        const __m256i eight = _mm256_cmpeq_epi16(lengths, _mm256_set1_epi16(8));
        _mm256_store_si256(reinterpret_cast<__m256i*>(is_present), eight);
        missing |= whole_words(_mm256_cmpeq_epi16(lengths, _mm256_setzero_si256())) << first;
        present |= whole_words(eight) << first;
        const int last = whole - first < 16 ? whole : first + 16;
        for (int i = first; i < last; i += 4) {
            const __m256i text = load_four(f.text, f.starts + i);
            const __m256i digit = _mm256_sub_epi8(text, zero);
            const __m256i letter = _mm256_sub_epi8(_mm256_or_si256(text, lower), letter_a);
            const __m256i is_digit = _mm256_cmpeq_epi8(_mm256_min_epu8(digit, nine), digit);
            const __m256i is_letter = _mm256_cmpeq_epi8(_mm256_min_epu8(letter, five), letter);
            good |= whole_parts(_mm256_or_si256(is_digit, is_letter)) << i;
            const __m256i values = _mm256_blendv_epi8(_mm256_add_epi8(letter, ten), digit, is_digit);
            const __m256i kept = _mm256_and_si256(values, widen_four(is_present + (i - first)));
            const __m256i packed = _mm256_shuffle_epi8(_mm256_maddubs_epi16(kept, pairs), order);
            const __m128i four = _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), four);
        }
    }
    const Found rest = hex32_from(f, whole, out);
    const std::uint64_t rows = first_bits(whole);
    return {(missing & rows) | rest.missing, (rows & ~missing & ~(present & good)) | rest.unusual};
}

HEADRACE_AVX2 inline Found decimal_avx2(const Fields& f, std::uint64_t* out) {
    const __m256i nine = _mm256_set1_epi8(9), zero = _mm256_set1_epi8('0');
    const __m256i tens = _mm256_set1_epi16(0x010A), hundreds = _mm256_set1_epi32(0x00010064);
    const __m256i ten_thousand = _mm256_set1_epi64x(10000);
    const int whole = f.rows & ~3;
    std::uint64_t missing = 0, fits = 0, good = 0;
    alignas(32) std::uint16_t shift[16];
    for (int first = 0; first < whole; first += 16) {
        const __m256i lengths = lengths16(f, first);
        const __m256i eight = _mm256_set1_epi16(8);
        missing |= whole_words(_mm256_cmpeq_epi16(lengths, _mm256_setzero_si256())) << first;
        fits |= whole_words(_mm256_cmpeq_epi16(_mm256_min_epu16(lengths, eight), lengths)) << first;
        // 64 for an empty field, which leaves nothing of what follows it.
        const __m256i bits = _mm256_slli_epi16(_mm256_sub_epi16(eight, lengths), 3);
        _mm256_store_si256(reinterpret_cast<__m256i*>(shift), bits);
        const int last = whole - first < 16 ? whole : first + 16;
        for (int i = first; i < last; i += 4) {
            const __m256i text = _mm256_sub_epi8(load_four(f.text, f.starts + i), zero);
            const __m256i digits = _mm256_sllv_epi64(text, widen_four(shift + (i - first)));
            good |= whole_parts(_mm256_cmpeq_epi8(_mm256_min_epu8(digits, nine), digits)) << i;
            const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(digits, tens), hundreds);
            const __m256i value = _mm256_add_epi64(_mm256_mul_epu32(fours, ten_thousand), _mm256_srli_epi64(fours, 32));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), value);
        }
    }
    const Found rest = decimal_from(f, whole, out);
    const std::uint64_t rows = first_bits(whole);
    return {(missing & rows) | rest.missing, (rows & ~(fits & good)) | rest.unusual};
}

#endif

}  // namespace detail

// The kernels of this machine; nullptr: it has none, and every line is parsed by itself.
inline const Kernels* best_kernels() {
#if HEADRACE_X86
    static const Kernels avx2{detail::find_avx2, detail::hex32_avx2, detail::decimal_avx2};
    static const bool runs = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
                             __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0;
    return runs ? &avx2 : nullptr;
#else
    return nullptr;
#endif
}

}  // namespace headrace::formats
