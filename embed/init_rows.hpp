// Initial vectors: a counter-based function of (seed, table uid, missing flag, id), see initializer.py for the formula.
#pragma once

#include <cmath>
#include <cstdint>

namespace headrace {

enum InitKind : int32_t { kConstant = 0, kUniform = 1, kNormal = 2 };

// constant: first = value. uniform: first = low, second = high - low (both float32). normal: first = std.
struct Initializer {
    uint64_t seed;
    int32_t kind;
    double first;
    double second;
};

// Philox4x32-10 (Salmon et al., SC 2011): words = counter on entry, random bits on return.
inline void philox4x32(uint32_t words[4], uint32_t key0, uint32_t key1) noexcept {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * words[0];
        const uint64_t b = uint64_t{0xCD9E8D57u} * words[2];
        const uint32_t w1 = words[1], w3 = words[3];
        words[0] = static_cast<uint32_t>(b >> 32) ^ w1 ^ key0;
        words[1] = static_cast<uint32_t>(b);
        words[2] = static_cast<uint32_t>(a >> 32) ^ w3 ^ key1;
        words[3] = static_cast<uint32_t>(a);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

// ln(m / 2^32) for 1 <= m <= 2^32, from IEEE operations alone, so that every libm gives the same bits.
inline double log_unit(uint64_t m) noexcept {
    int exponent = 0;
    double f = std::frexp(static_cast<double>(m), &exponent);
    if (f < 0.70710678118654752) {
        f *= 2.0;
        exponent -= 1;
    }
    const double s = (f - 1.0) / (f + 1.0);
    const double z = s * s;
    double series = 1.0 / 21.0;
    for (int odd = 19; odd >= 1; odd -= 2) series = series * z + 1.0 / odd;
    return (exponent - 32) * 0.69314718055994531 + 2.0 * s * series;
}

// cos and sin of (quadrant + t) * pi / 2, where the top 2 bits of x are the quadrant and t = (low 30 bits) / 2^30 -
// 1/2.
inline void cos_sin_turn(uint32_t x, double* cosine, double* sine) noexcept {
    const double t = (x & 0x3FFFFFFFu) * (1.0 / 1073741824.0) - 0.5;
    const double a = t * 1.5707963267948966;
    const double z = a * a;
    double c = 1.0, s = 1.0;
    for (int k = 16; k >= 2; k -= 2) c = 1.0 - c * z / (k * (k - 1));
    for (int k = 17; k >= 3; k -= 2) s = 1.0 - s * z / (k * (k - 1));
    s = s * a;
    switch (x >> 30) {
        case 0:
            *cosine = c, *sine = s;
            break;
        case 1:
            *cosine = -s, *sine = c;
            break;
        case 2:
            *cosine = -c, *sine = -s;
            break;
        default:
            *cosine = s, *sine = -c;
            break;
    }
}

inline void normal_pair(uint32_t x0, uint32_t x1, double std_dev, float out[2]) noexcept {
    const double radius = std_dev * std::sqrt(-2.0 * log_unit(uint64_t{x0} + 1));
    double cosine, sine;
    cos_sin_turn(x1, &cosine, &sine);
    out[0] = static_cast<float>(radius * cosine);
    out[1] = static_cast<float>(radius * sine);
}

inline void initial_vector(const Initializer& init, uint64_t id, uint32_t table, bool missing, int64_t dim,
                           float* out) noexcept {
    if (init.kind == kConstant) {
        for (int64_t j = 0; j < dim; ++j) out[j] = static_cast<float>(init.first);
        return;
    }
    if (missing) id = 0;
    const uint32_t key0 = static_cast<uint32_t>(init.seed), key1 = static_cast<uint32_t>(init.seed >> 32);
    const float low = static_cast<float>(init.first), span = static_cast<float>(init.second);
    for (int64_t block = 0; 4 * block < dim; ++block) {
        uint32_t words[4] = {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), table,
                             static_cast<uint32_t>(block) | (missing ? 0x80000000u : 0u)};
        philox4x32(words, key0, key1);
        float values[4];
        if (init.kind == kUniform) {
            for (int k = 0; k < 4; ++k) {
                const float unit = static_cast<float>(words[k] >> 8) * (1.0f / 16777216.0f);
                const float scaled = span * unit;
                values[k] = low + scaled;
            }
        } else {
            normal_pair(words[0], words[1], init.first, values);
            normal_pair(words[2], words[3], init.first, values + 2);
        }
        for (int64_t k = 0; k < 4 && 4 * block + k < dim; ++k) out[4 * block + k] = values[k];
    }
}

}  // namespace headrace
