// A counter that two processes share: who reads a value sees all that was written before it was put there.
#pragma once

#include <cstdint>

namespace headrace {

// The builtins and not std::atomic: the words lie in memory that the other process has mapped, where no object of
// that type was ever made. `word` is aligned to its size, so that no lock (which could not be shared) is involved.
inline void put_word(std::int64_t* word, std::int64_t value) noexcept {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

inline std::int64_t read_word(const std::int64_t* word) noexcept { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

}  // namespace headrace
