// Memory for arrays of 1 to 8 MiB, packed on huge pages.
//
// An index of some million rows is 64 such arrays. Each by itself lies on small pages, and nearly every random read of
// it then misses the translation buffer, which costs more than the read; packed, they need a few hundred entries of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
inline bool drop_pages(void* memory, std::size_t bytes) noexcept { return madvise(memory, bytes, MADV_DONTNEED) == 0; }
#else
inline void* map_huge(std::size_t) noexcept { return nullptr; }
inline void unmap_huge(void*, std::size_t) noexcept {}
inline bool drop_pages(void*, std::size_t) noexcept { return false; }
#endif

// Best fit in units of 4 KiB over one range of addresses, of which only the touched pages are memory. Arrays that
// grow in turn leave neighbouring holes, which the next ones fill.
class PageArena {
  public:
    static constexpr std::size_t kLeast = std::size_t{1} << 20, kMost = std::size_t{8} << 20;

    PageArena() : taken_(kUnits / 64), dirty_(kPages) {}
    PageArena(const PageArena&) = delete;
    PageArena& operator=(const PageArena&) = delete;
    ~PageArena() {
        if (memory_ != nullptr) unmap_huge(memory_, kBytes);
    }

    // Zeroed; null where there is no room: ask the system then.
    void* allocate(std::size_t bytes) noexcept {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (memory_ == nullptr) memory_ = static_cast<char*>(map_huge(kBytes));
        if (memory_ == nullptr) return nullptr;
        const std::size_t units = units_of(bytes), unit = best_fit(units);
        if (unit == kUnits) return nullptr;
        mark(unit, units, true);
        char* const begin = memory_ + unit * kUnit;
        for (std::size_t page = unit * kUnit / kHugePage; page * kHugePage < (unit + units) * kUnit; ++page) {
            char* const from = std::max(begin, memory_ + page * kHugePage);
            char* const to = std::min(begin + units * kUnit, memory_ + (page + 1) * kHugePage);
            if (dirty_[page]) std::memset(from, 0, static_cast<std::size_t>(to - from));
            num_dirty_ += !dirty_[page];
            dirty_[page] = true;
        }
        return begin;
    }

    void release(void* array, std::size_t bytes) noexcept {
        const std::lock_guard<std::mutex> lock(mutex_);
        const std::size_t unit = static_cast<std::size_t>(static_cast<char*>(array) - memory_) / kUnit;
        mark(unit, units_of(bytes), false);
        for (std::size_t page = unit * kUnit / kHugePage; page * kHugePage < (unit + units_of(bytes)) * kUnit; ++page) {
            if (any_taken(page) || !drop_pages(memory_ + page * kHugePage, kHugePage)) continue;
            dirty_[page] = false;
            --num_dirty_;
        }
    }

    bool owns(const void* array) const noexcept {
        const auto* const at = static_cast<const char*>(array);
        return memory_ != nullptr && at >= memory_ && at < memory_ + kBytes;
    }

    // Of the pages in use, holes in them included.
    std::size_t nbytes() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return num_dirty_ * kHugePage;
    }

  private:
    static constexpr std::size_t kBytes = std::size_t{1} << 30, kUnit = kSmallPage;
    static constexpr std::size_t kUnits = kBytes / kUnit, kPages = kBytes / kHugePage;

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

    bool any_taken(std::size_t page) const {
        constexpr std::size_t kWords = kHugePage / kUnit / 64;
        for (std::size_t word = page * kWords; word < (page + 1) * kWords; ++word) {
            if (taken_[word] != 0) return true;
        }
        return false;
    }

    std::mutex mutex_;
    char* memory_ = nullptr;
    std::vector<std::uint64_t> taken_;  // a bit a unit
    std::vector<bool> dirty_;           // pages that may hold what is not zero
    std::size_t num_dirty_ = 0;
};

}  // namespace headrace
