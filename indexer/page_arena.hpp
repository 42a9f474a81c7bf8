// Memory on huge pages, packed and used again.
//
// An index of some million rows is 64 arrays of a few MiB. Each by itself lies on small pages, and nearly every random
// read of it then misses the translation buffer, which costs more than the read; packed, they need a few hundred
// entries of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace headrace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSmallPage = std::size_t{4} << 10;

#ifdef __linux__
// Zeroed memory that begins at a huge page and has huge pages where the system gives them; null when there is none.
inline void* map_huge(std::size_t bytes) noexcept {
    const std::size_t whole = bytes + kHugePage;
    void* mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    char* const first = static_cast<char*>(mapped);
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
    if (before != 0) munmap(first, before);
    if (before != kHugePage) munmap(first + before + bytes, kHugePage - before);
    madvise(first + before, bytes, MADV_HUGEPAGE);  // advice: may be refused
    return first + before;
}
inline void unmap_huge(void* memory, std::size_t bytes) noexcept { munmap(memory, bytes); }

// The pages of one mapping become the first of a larger one, with their content; null if that is not to be had, and
// then nothing has changed. Both begin at a huge page, so that whole ones move.
inline void* extend_huge(void* memory, std::size_t bytes, std::size_t larger) noexcept {
    void* const fresh = map_huge(larger);
    if (fresh == nullptr) return nullptr;
    if (mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, fresh) != MAP_FAILED) return fresh;
    unmap_huge(fresh, larger);
    return nullptr;
}
inline bool drop_pages(void* memory, std::size_t bytes) noexcept { return madvise(memory, bytes, MADV_DONTNEED) == 0; }
#else
inline void* map_huge(std::size_t bytes) noexcept { return std::calloc(bytes, 1); }
inline void unmap_huge(void* memory, std::size_t) noexcept { std::free(memory); }
inline void* extend_huge(void* memory, std::size_t, std::size_t larger) noexcept {
    return std::realloc(memory, larger);
}
inline bool drop_pages(void*, std::size_t) noexcept { return false; }
#endif

// Memory for the arrays of one index. What is given out is not zeroed: an array that takes another's place is filled
// from front to back anyway, and to have pages cleared first takes as long as filling them.
//
// Arrays of 1 to 8 MiB: best fit in units of 4 KiB over one range of addresses, of which only the touched pages are
// memory. Arrays that grow in turn leave neighbouring holes, which the next ones fill. Larger arrays are mapped for
// themselves; the one that was given back last becomes the first part of the next.
class PageArena {
  public:
    static constexpr std::size_t kLeast = std::size_t{1} << 20, kMost = std::size_t{8} << 20;

    PageArena() : taken_(kUnits / 64), touched_(kPages) {}
    PageArena(const PageArena&) = delete;
    PageArena& operator=(const PageArena&) = delete;
    ~PageArena() {
        if (memory_ != nullptr) unmap_huge(memory_, kBytes);
        if (spare_ != nullptr) unmap_huge(spare_, spare_bytes_);
    }

    // Of kLeast bytes or more; null where there is no room: ask the system then.
    void* allocate(std::size_t bytes) noexcept {
        const std::lock_guard<std::mutex> lock(mutex_);
        return bytes >= kMost ? allocate_large(bytes) : allocate_packed(bytes);
    }

    void release(void* array, std::size_t bytes) noexcept {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (bytes >= kMost) {
            if (spare_ != nullptr) unmap_huge(spare_, spare_bytes_);
            spare_ = array;
            spare_bytes_ = whole_pages(bytes);
            return;
        }
        const std::size_t unit = static_cast<std::size_t>(static_cast<char*>(array) - memory_) / kUnit;
        mark(unit, units_of(bytes), false);
        num_taken_ -= units_of(bytes);
        if (num_touched_ * kHugePage > num_taken_ * kUnit / 8 * 9 + 2 * kHugePage) drop_unused();
    }

    bool owns(const void* array) const noexcept {
        const auto* const at = static_cast<const char*>(array);
        return memory_ != nullptr && at >= memory_ && at < memory_ + kBytes;
    }

    static std::size_t whole_pages(std::size_t bytes) { return (bytes + kSmallPage - 1) / kSmallPage * kSmallPage; }

    // Of packed arrays, the holes between them included, and of the spare one.
    std::size_t nbytes() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return num_touched_ * kHugePage + (spare_ != nullptr ? spare_bytes_ : 0);
    }

  private:
    static constexpr std::size_t kBytes = std::size_t{1} << 30, kUnit = kSmallPage;
    static constexpr std::size_t kUnits = kBytes / kUnit, kPages = kBytes / kHugePage;

    void* allocate_large(std::size_t bytes) noexcept {
        bytes = whole_pages(bytes);
        if (spare_ != nullptr && spare_bytes_ <= bytes) {
            if (void* const larger = extend_huge(spare_, spare_bytes_, bytes)) {
                spare_ = nullptr;
                return larger;
            }
        }
        return map_huge(bytes);
    }

    void* allocate_packed(std::size_t bytes) noexcept {
        if (memory_ == nullptr) memory_ = static_cast<char*>(map_huge(kBytes));
        if (memory_ == nullptr) return nullptr;
        const std::size_t units = units_of(bytes), unit = best_fit(units);
        if (unit == kUnits) return nullptr;
        mark(unit, units, true);
        num_taken_ += units;
        for (std::size_t page = unit * kUnit / kHugePage; page * kHugePage < (unit + units) * kUnit; ++page) {
            num_touched_ += !touched_[page];
            touched_[page] = true;
        }
        return memory_ + unit * kUnit;
    }

    // Gives back the pages in which nothing is.
    void drop_unused() {
        constexpr std::size_t kWords = kHugePage / kUnit / 64;
        for (std::size_t page = 0; page < kPages; ++page) {
            const auto words = taken_.begin() + static_cast<std::ptrdiff_t>(page * kWords);
            if (!touched_[page] || std::any_of(words, words + kWords, [](std::uint64_t word) { return word != 0; }))
                continue;
            if (!drop_pages(memory_ + page * kHugePage, kHugePage)) continue;
            touched_[page] = false;
            --num_touched_;
        }
    }

    static std::size_t units_of(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit; }

    // The smallest hole that is large enough; what lies behind the last array is the largest.
    std::size_t best_fit(std::size_t units) const {
        std::size_t best = kUnits, least = kUnits + 1;
        for (std::size_t begin = next(0, false); begin < kUnits;) {
            const std::size_t end = next(begin, true);
            if (end - begin >= units && end - begin < least) {
                best = begin;
                least = end - begin;
            }
            begin = next(end, false);
        }
        return best;
    }

    // The first unit from `unit` on that is taken, or is not.
    std::size_t next(std::size_t unit, bool taken) const {
        while (unit < kUnits) {
            const std::uint64_t word = (taken ? taken_[unit / 64] : ~taken_[unit / 64]) >> (unit % 64);
            if (word != 0) return unit + static_cast<std::size_t>(__builtin_ctzll(word));
            unit = (unit / 64 + 1) * 64;
        }
        return kUnits;
    }

    void mark(std::size_t unit, std::size_t units, bool taken) {
        for (; units > 0; ++unit, --units) {
            const std::uint64_t bit = std::uint64_t{1} << (unit % 64);
            taken_[unit / 64] = taken ? taken_[unit / 64] | bit : taken_[unit / 64] & ~bit;
        }
    }

    std::mutex mutex_;
    char* memory_ = nullptr;
    std::vector<std::uint64_t> taken_;  // a bit a unit
    std::vector<bool> touched_;         // pages
    std::size_t num_taken_ = 0, num_touched_ = 0;
    void* spare_ = nullptr;
    std::size_t spare_bytes_ = 0;
};

}  // namespace headrace
