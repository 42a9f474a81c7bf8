// Memory for arrays that are read at random: in huge pages where the system has them, for the sake of the TLB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(__GNUC__) || defined(__clang__)
#define HEADRACE_PREFETCH(address) __builtin_prefetch(address)
#define HEADRACE_PREFETCH_WRITE(address) __builtin_prefetch(address, 1)
#else
#define HEADRACE_PREFETCH(address) ((void)(address))
#define HEADRACE_PREFETCH_WRITE(address) ((void)(address))
#endif

namespace headrace::plan {

// Large blocks begin at a huge page, small ones at a cache line; the address that `operator new` gave stands before
// them.
template <class T>
struct HugePages {
    using value_type = T;
    static constexpr size_t PAGE = size_t{1} << 21;
    static constexpr size_t LEAST = PAGE;  // smaller blocks are left to the ordinary allocator

    HugePages() = default;
    template <class U>
    HugePages(const HugePages<U>&) noexcept {}

    T* allocate(size_t count) {
        static_assert(alignof(T) <= 64, "blocks begin at a cache line");
        if (count > SIZE_MAX / sizeof(T) - 2 * PAGE) throw std::bad_alloc();
        const size_t bytes = count * sizeof(T);
        const size_t unit = bytes < LEAST ? 64 : PAGE;
        char* const given = static_cast<char*>(::operator new(bytes + unit + sizeof(void*)));
        const size_t past = reinterpret_cast<uintptr_t>(given + sizeof(void*)) % unit;
        char* const aligned = given + sizeof(void*) + (past == 0 ? 0 : unit - past);
        std::memcpy(aligned - sizeof(void*), &given, sizeof(void*));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (unit == PAGE) (void)madvise(aligned, bytes / PAGE * PAGE, MADV_HUGEPAGE);  // a wish, no need
#endif
        return reinterpret_cast<T*>(aligned);
    }

    void deallocate(T* array, size_t) noexcept {
        void* given = nullptr;
        std::memcpy(&given, reinterpret_cast<char*>(array) - sizeof(void*), sizeof(void*));
        ::operator delete(given);
    }

    // What is not given a value gets none: memory that nobody has written to yet is not there yet.
    template <class U, class... Args>
    void construct(U* place, Args&&... args) {
        if constexpr (sizeof...(Args) == 0) {
            ::new (static_cast<void*>(place)) U;
        } else {
            ::new (static_cast<void*>(place)) U(std::forward<Args>(args)...);
        }
    }

    friend bool operator==(const HugePages&, const HugePages&) { return true; }
    friend bool operator!=(const HugePages&, const HugePages&) { return false; }
};

template <class T>
using HugeVector = std::vector<T, HugePages<T>>;

}  // namespace headrace::plan
