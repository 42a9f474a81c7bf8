// The mode in which a thread calculates: how it rounds, and whether denormal numbers are zero to it
// (`torch.set_flush_denormal`). Each thread has one of its own, at first that of the thread that started it.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace headrace {

// 0 on processors whose modes are not known here.
using FloatMode = std::uint64_t;

#if defined(__SSE2__)

namespace detail {
constexpr unsigned kFloatFlags = 0x3F;  // of MXCSR: what has happened so far, which is no mode
}

inline FloatMode float_mode() noexcept { return _mm_getcsr() & ~detail::kFloatFlags; }

inline void set_float_mode(FloatMode mode) noexcept {
    const unsigned now = _mm_getcsr(), flags = now & detail::kFloatFlags;
    if (mode != (now ^ flags)) _mm_setcsr(static_cast<unsigned>(mode) | flags);
}

#elif defined(__aarch64__)

inline FloatMode float_mode() noexcept {
    FloatMode fpcr = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
}

inline void set_float_mode(FloatMode mode) noexcept {
    if (mode != float_mode()) __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}

#else

inline FloatMode float_mode() noexcept { return 0; }
inline void set_float_mode(FloatMode) noexcept {}

#endif

}  // namespace headrace
