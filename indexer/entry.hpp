// The 16-byte entry of the index, and the memory that holds a shard's entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "hashing.hpp"

namespace headrace {

constexpr int kOffsetBits = 14;
constexpr int kChunkBits = 32;
constexpr int kPlaceBits = kOffsetBits + kChunkBits;
constexpr std::uint32_t kChunkRows = 1u << kOffsetBits;
constexpr std::uint64_t kPlaceMask = (std::uint64_t{1} << kPlaceBits) - 1;
constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

// word = occupied 1 | missing 1 | table ordinal 16 | chunk 32 | offset 14. A location has the owner's rank where the
// ordinal stands here and the tier in the two top bits. An empty entry is word 0: no id is taken for it.
struct Entry {
    std::uint64_t id, word;

    bool occupied() const { return word >> 63; }
    bool missing() const { return word >> 62 & 1; }
    std::uint32_t table() const { return static_cast<std::uint32_t>(word >> kPlaceBits) & 0xFFFF; }
    std::uint32_t chunk() const { return static_cast<std::uint32_t>(word >> kOffsetBits); }
    std::uint32_t offset() const { return static_cast<std::uint32_t>(word) & (kChunkRows - 1); }
};

// The bits of `word` that belong to the key.
inline std::uint64_t key_bits(std::uint32_t table, bool missing) {
    return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(missing) << 62 |
           static_cast<std::uint64_t>(table) << kPlaceBits;
}

inline std::uint64_t place_bits(std::uint32_t chunk, std::uint32_t offset) {
    return static_cast<std::uint64_t>(chunk) << kOffsetBits | offset;
}

// Zeroed entries, aligned to cache lines so that four share one. A large array is mapped for itself, on huge pages
// where the system gives them: random reads of a table of gigabytes otherwise miss the translation buffer every time,
// and memory that the allocator hands out again is already on small pages.
class EntryArray {
  public:
    EntryArray() = default;
    explicit EntryArray(std::size_t capacity) : capacity_(capacity) {
        if (!is_mapped()) {
            entries_ = static_cast<Entry*>(::operator new(nbytes(), kAlignment));
            std::memset(static_cast<void*>(entries_), 0, nbytes());
            return;
        }
#ifdef __linux__
        entries_ = static_cast<Entry*>(map_aligned(mapped_bytes()));
        if (entries_ == nullptr) throw std::bad_alloc();
        madvise(entries_, mapped_bytes(), MADV_HUGEPAGE);  // advice: may be refused
#endif
    }
    EntryArray(EntryArray&& other) noexcept { swap(other); }
    EntryArray& operator=(EntryArray&& other) noexcept {
        swap(other);
        return *this;
    }
    ~EntryArray() {
#ifdef __linux__
        if (is_mapped()) {
            munmap(entries_, mapped_bytes());
            return;
        }
#endif
        ::operator delete(entries_, kAlignment);
    }

    void swap(EntryArray& other) noexcept {
        std::swap(entries_, other.entries_);
        std::swap(capacity_, other.capacity_);
    }

    Entry& operator[](std::size_t i) { return entries_[i]; }
    const Entry& operator[](std::size_t i) const { return entries_[i]; }
    std::size_t capacity() const { return capacity_; }
    // Bytes allocated: whole huge pages where it is mapped.
    std::size_t nbytes() const { return is_mapped() ? mapped_bytes() : capacity_ * sizeof(Entry); }
    // Of a permuted hash.
    std::size_t home(std::uint64_t position) const { return probe_home(position, capacity_); }
    std::size_t next(std::size_t i) const { return ++i == capacity_ ? 0 : i; }
    // Steps forward from a to b, around the end.
    std::size_t distance(std::size_t a, std::size_t b) const { return b >= a ? b - a : b + capacity_ - a; }
    // The line of the home and the next one, if a short run of occupied entries reaches into it.
    void prefetch(std::uint64_t position) const {
        const Entry* const entry = entries_ + home(position);
        __builtin_prefetch(entry);
        __builtin_prefetch(entry + 3);
    }

  private:
    static constexpr std::size_t kHugePage = std::size_t{2} << 20;
    static constexpr std::size_t kMapFrom = 4 * kHugePage;  // so that rounding up wastes at most a fifth
    static constexpr std::align_val_t kAlignment{64};

#ifdef __linux__
    bool is_mapped() const { return capacity_ * sizeof(Entry) >= kMapFrom; }
    std::size_t mapped_bytes() const { return (capacity_ * sizeof(Entry) + kHugePage - 1) / kHugePage * kHugePage; }

    // Zeroed memory that begins at a huge page; null when there is none.
    static void* map_aligned(std::size_t bytes) noexcept {
        const std::size_t whole = bytes + kHugePage;
        void* mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return nullptr;
        char* const first = static_cast<char*>(mapped);
        const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
        if (before != 0) munmap(first, before);
        if (before != kHugePage) munmap(first + before + bytes, kHugePage - before);
        return first + before;
    }
#else
    static constexpr bool is_mapped() { return false; }
    static constexpr std::size_t mapped_bytes() { return 0; }
#endif

    Entry* entries_ = nullptr;
    std::size_t capacity_ = 0;
};

}  // namespace headrace
